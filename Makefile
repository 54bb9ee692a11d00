# Everything a newcomer needs. `make` alone lists the targets.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup demo up test crash-matrix chaos soak containers planted-bugs check lock clean

PYTHON := .venv/bin/python
# Newest first; any interpreter from 3.11 on that can make a virtual environment will do.
INTERPRETERS := python3.13 python3.12 python3.11 python3
# Written last, so that an interrupted installation starts again.
STAMP := .venv/.installed
# Arguments for pytest: make test ARGS="-k supervisor"
ARGS ?=
LOCK := pip compile pyproject.toml --quiet --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-annotate --custom-compile-command "make lock" $(if $(UPGRADE),--upgrade)

help: ## list the targets
	@sed -n -E 's/^([a-z-]+):[^#]*## (.*)/  make \1|\2/p' Makefile | awk -F'|' '{ printf "%-14s %s\n", $$1, $$2 }'

setup: $(STAMP) ## make .venv with the locked packages (nothing to do the second time)
	@:

$(STAMP): requirements.lock
	@if ! $(PYTHON) -c 'import pip' 2>/dev/null; then \
		found=""; lacking=""; \
		for name in $(INTERPRETERS); do \
			$$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue; \
			if $$name -c 'import ensurepip, venv' 2>/dev/null; then found=$$name; break; fi; \
			lacking=$${lacking:-$$($$name -c 'import sys; print("python%d.%d" % sys.version_info[:2])')}; \
		done; \
		if [ -z "$$found" ] && [ -n "$$lacking" ]; then \
			echo "$$lacking can't make virtual environments here. On Debian or Ubuntu:" \
				"apt-get install $$lacking-venv (or python3-venv), then make setup again." >&2; exit 1; \
		elif [ -z "$$found" ]; then \
			echo "Python 3.11 or newer is needed; none of these is: $(INTERPRETERS)." >&2; exit 1; \
		fi; \
		echo "==> Making .venv with $$found ($$($$found -V))"; \
		$$found -m venv --clear .venv || { \
			echo "'$$found -m venv' failed. On Debian or Ubuntu: apt-get install python3-venv." >&2; exit 1; }; \
	fi
	@echo "==> Installing $$(grep -c '==' requirements.lock) packages from requirements.lock (about 120 MB the first time)"
	@set -o pipefail; PYTHONUNBUFFERED=1 $(PYTHON) -m pip install --disable-pip-version-check --no-input --progress-bar off --no-compile \
		--require-hashes -r requirements.lock \
		| sed -n -E -e 's/^ *(Downloading|Using cached) ([^ ]*\/)?([^ /]+)-[0-9][^ ]* \(([0-9.]+ MB)\)$$/    \3 (\4)/p' \
			-e 's/^Installing collected packages.*/    unpacking/p'
	@echo "==> Compiling them, as each command would have to where bytecode is not written"
	@$(PYTHON) -m compileall -q -j 0 .venv/lib >/dev/null || true
	@touch $@
	@echo "==> Ready: $$($(PYTHON) -V) in .venv"

demo: setup ## run orders through real servers, break things, see them recover (KEEP=1 leaves it running)
	@SAS_PARENT_PID=$$PPID exec $(PYTHON) starter.py demo $(if $(KEEP),--keep)

up: setup ## start everything on this machine and stay in the foreground
	@SAS_PARENT_PID=$$PPID exec $(PYTHON) starter.py up

test: setup ## run the tests: make test ARGS="-k supervisor"
	@$(PYTHON) -m pytest $(ARGS)

crash-matrix: setup ## a process dies at every write and every call: make crash-matrix ARGS="--seed 7 -o matrix.json"
	@$(PYTHON) -m chaos.matrix $(ARGS)

chaos: setup ## 2,000 tasks while 400 faults strike, then the checker; a report to .local: make chaos ARGS="--seed 7"
	@$(PYTHON) -m chaos.run -o .local/chaos.json $(ARGS)

soak: setup ## the same with 25,000 tasks and 3,000 faults
	@$(PYTHON) -m chaos.run --soak -o .local/soak.json $(ARGS)

containers: setup ## docker-compose.yml for real, with faults, then the audit; needs an engine: make containers ARGS=--short
	@$(PYTHON) -m chaos.containers $(ARGS)

planted-bugs: setup ## mistakes that people make, planted one by one: the checker sees each: make planted-bugs ARGS="--only cap"
	@$(PYTHON) -m chaos.planted $(ARGS)

check: setup ## everything that must pass before a change goes in: lint, format, types, imports, tests
	@echo "==> ruff check" && .venv/bin/ruff check .
	@echo "==> ruff format" && .venv/bin/ruff format --check .
	@echo "==> mypy" && .venv/bin/mypy
	@echo "==> import contracts" && .venv/bin/lint-imports
	@echo "==> pytest" && $(PYTHON) -m pytest $(ARGS)

lock: ## pin the dependencies again (UPGRADE=1 takes the newest); needs uv
	@uv=$$([ -x .venv/bin/uv ] && echo .venv/bin/uv || command -v uv) || { \
		echo "uv is needed: $(PYTHON) -m pip install uv" >&2; exit 1; }; \
	$$uv $(LOCK) --extra embedded --extra dev --output-file requirements.lock; \
	$$uv $(LOCK) --constraint requirements.lock --output-file requirements-prod.lock
	@echo "==> requirements.lock $$(grep -c '==' requirements.lock) packages," \
		"requirements-prod.lock $$(grep -c '==' requirements-prod.lock)"

clean: ## remove .venv and caches; the data of `make up` in .local stays
	@rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis dist
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
