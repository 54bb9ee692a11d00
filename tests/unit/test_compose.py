"""The container set-up is held to what the code knows: settings, roles, files, trust boundaries."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from temporalio.envconfig import ClientConfigProfile

from chaos.containers import images
from domain.search_attributes import SEARCH_ATTRIBUTES
from runtime.settings import Settings, unknown_settings

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = [name for name, service in SERVICES.items() if service["image"].startswith("${APP_IMAGE")]
ROLES = {"scheduler", "agents", "callbacks", "supervisor"}

# Keys of the Compose specification that this file may use: a misspelt key is one that is not here.
TOP_LEVEL_KEYS = {"name", "services", "networks", "volumes"}
SERVICE_KEYS = {
    "build",
    "cap_drop",
    "command",
    "depends_on",
    "deploy",
    "entrypoint",
    "environment",
    "healthcheck",
    "image",
    "init",
    "logging",
    "mem_limit",
    "networks",
    "pids_limit",
    "ports",
    "profiles",
    "read_only",
    "restart",
    "security_opt",
    "shm_size",
    "stop_grace_period",
    "tmpfs",
    "volumes",
}
HEALTHCHECK_KEYS = {"test", "interval", "timeout", "retries", "start_period"}
CONDITIONS = {"service_started", "service_healthy", "service_completed_successfully"}

VARIABLE = re.compile(r"\$\{(?P<name>\w+)(?::(?P<kind>[?-])(?P<rest>[^}]*))?\}")


def dotenv(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines() if re.match(r"[A-Z_]+=", line))


EXAMPLE_ENV = (ROOT / "deploy/example.env").read_text()


def resolved(value: str) -> str:
    """The value as Compose hands it to the container, with `deploy/example.env` as `.env`."""
    given = dotenv(EXAMPLE_ENV)
    return VARIABLE.sub(lambda found: given.get(found["name"], found["rest"] or ""), value)


def environment(service: str) -> dict[str, str]:
    return {name: resolved(str(value)) for name, value in SERVICES[service].get("environment", {}).items()}


def test_only_keys_of_the_specification_are_used() -> None:
    assert {key for key in COMPOSE if not key.startswith("x-")} <= TOP_LEVEL_KEYS
    for name, service in SERVICES.items():
        assert set(service) <= SERVICE_KEYS, name
        assert set(service.get("healthcheck", {})) <= HEALTHCHECK_KEYS, name
        assert "image" in service, name


def test_networks_and_named_volumes_are_declared() -> None:
    for name, service in SERVICES.items():
        assert set(service["networks"]) <= set(COMPOSE["networks"]), name
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert source in COMPOSE["volumes"] or (ROOT / source).is_dir(), f"{name}: {volume}"


@pytest.mark.parametrize("name", SERVICES)
def test_dependencies_can_be_met(name: str) -> None:
    for dependency, terms in SERVICES[name].get("depends_on", {}).items():
        assert dependency in SERVICES
        assert terms["condition"] in CONDITIONS
        if terms["condition"] == "service_healthy":
            assert "healthcheck" in SERVICES[dependency]
        if terms["condition"] == "service_completed_successfully":
            assert SERVICES[dependency]["restart"].startswith("on-failure"), f"{dependency} never completes"


def test_containers_tier_names_every_image_that_is_not_ours() -> None:
    assert images() == [
        "postgres:18",
        "python:3.12-slim",
        "temporalio/admin-tools:1.32.0",
        "temporalio/server:1.32.0",
        "temporalio/ui:2.54.1",
    ]


def test_command_line_starts_no_other_service() -> None:
    assert "depends_on" not in SERVICES["cli"]


def test_image_is_built_once() -> None:
    assert [name for name, service in SERVICES.items() if "build" in service] == ["migrate"]


def test_every_service_has_bounds() -> None:
    for name, service in SERVICES.items():
        assert service["pids_limit"], name
        assert service["logging"]["options"]["max-size"], name
        once = service["restart"].startswith("on-failure") and name not in OURS
        assert once or service["mem_limit"], name


@pytest.mark.parametrize("password", ["change-me-2", "short", "with-a-sign-in-it-1234", ""])
def test_weak_password_is_refused_by_its_variable(password: str) -> None:
    names = {n: "0123456789abcdef" for n in SERVICES["database-setup"]["environment"] if n.endswith("PASSWORD")}
    done = subprocess.run(
        ["/bin/bash", str(ROOT / "deploy/postgres/setup.sh")],
        env={**os.environ, **names, "POSTGRES_APP_PASSWORD": password},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "POSTGRES_APP_PASSWORD" in done.stderr


def test_ports_are_published_on_loopback_only() -> None:
    published = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert published
    assert [port for port in published if not re.fullmatch(r"127\.0\.0\.1:\$\{\w+_PORT:-(\d+)\}:\1", port)] == []


@pytest.mark.parametrize("name", OURS)
def test_each_variable_is_one_that_the_process_reads(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given = environment(name)
    for variable, value in given.items():
        monkeypatch.setenv(variable, value)
        if variable.startswith("TEMPORAL_"):
            assert connection({variable: value}) != connection({}), f"Temporal does not read {variable}"
        else:
            field, _, service = variable.removeprefix("SAS_").lower().partition("__")
            assert variable.startswith("SAS_")
            assert bool(service) == (field == "services")
    assert unknown_settings() == []
    services = {variable.split("__")[1].lower() for variable in given if "__" in variable}
    assert set(Settings().services) == services


def connection(variables: dict[str, str]) -> ClientConfigProfile:
    """What Temporal's own convention makes of these variables, and of nothing else on this machine."""
    return ClientConfigProfile.load(disable_file=True, override_env_vars={"UNRELATED": "1", **variables})


def test_example_env_gives_each_variable_and_no_other() -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    required = {found["name"] for found in VARIABLE.finditer(text) if found["kind"] == "?"}
    optional = {found["name"]: found["rest"] for found in VARIABLE.finditer(text) if found["kind"] == "-"}
    assert set(dotenv(EXAMPLE_ENV)) == required
    assert dotenv(EXAMPLE_ENV.replace("\n#", "\n")).items() >= optional.items()
    assert set(dotenv(EXAMPLE_ENV.replace("\n#", "\n"))) == required | set(optional)


@pytest.mark.demand("C6")
def test_payments_agents_have_no_way_to_a_database() -> None:
    names = set(environment("agents-payments"))
    assert not {name for name in names if "DATABASE" in name or "ORDERS" in name}
    assert "state" not in SERVICES["agents-payments"]["networks"]
    assert "postgresql:" not in str(environment("agents-payments"))


def test_supervisor_has_only_its_own_role() -> None:
    urls = {name: value for name, value in environment("supervisor").items() if "postgresql:" in value}
    assert set(urls) == {"SAS_SUPERVISOR_DATABASE_URL"}
    assert urls["SAS_SUPERVISOR_DATABASE_URL"].startswith("postgresql://sas_supervisor:")
    assert not any(name.startswith("SAS_SERVICES") for name in environment("supervisor"))


def test_owner_role_is_for_migrations_only() -> None:
    assert [name for name in OURS if "sas_owner" in str(environment(name))] == ["migrate"]


@pytest.mark.parametrize("name", OURS)
def test_commands_name_what_exists(name: str) -> None:
    first, *rest = SERVICES[name]["command"]
    if first == "-m":
        assert (ROOT / rest[0].replace(".", "/") / "__main__.py").is_file()
        return
    assert (ROOT / first).is_file()
    options = dict(zip(rest[::2], rest[1::2], strict=True)) if first == "worker.py" else {}
    assert set(options.get("--roles", "scheduler").split(",")) <= ROLES
    agents = set(options["--agents"].split(",")) if "--agents" in options else set()
    services = {variable.split("__")[1].lower() for variable in environment(name) if "__" in variable}
    assert agents == services, "each Agent has its service's address, and no other"


def test_each_agent_runs_in_one_place() -> None:
    commands = [SERVICES[name]["command"] for name in OURS]
    agents = [agent for command in commands if "--agents" in command for agent in command[-1].split(",")]
    assert sorted(agents) == ["cloud", "mail", "payments", "shipping", "stock"]


def test_scripts_in_the_containers_exist_and_are_executable() -> None:
    for name in ("temporal-schema", "temporal-namespace"):
        assert (ROOT / "deploy/temporal" / Path(SERVICES[name]["command"][0]).name).is_file()
    dynamic = environment("temporal")["DYNAMIC_CONFIG_FILE_PATH"]
    assert (ROOT / "deploy/temporal" / Path(dynamic).name).is_file()
    assert (ROOT / "deploy/postgres" / Path(SERVICES["database-setup"]["command"][0]).name).is_file()


def test_namespace_script_makes_the_search_attributes_that_workflows_set() -> None:
    script = (ROOT / "deploy/temporal/namespace.sh").read_text()
    made = dict(re.findall(r"--name (\w+) --type (\w+)", script))
    assert made == dict(SEARCH_ATTRIBUTES)


def test_image_takes_in_every_package() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    copied = re.findall(r"^COPY (?!--)(.+) \S+$", dockerfile, re.MULTILINE)
    sources = {source.rstrip("/") for line in copied for source in line.split()}
    allowed = {line[1:].rstrip("/") for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] == "!"}
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"chaos", "testing", "tests"}
    assert sources == allowed
    assert packages <= sources


@pytest.mark.failure(121)
def test_image_runs_as_a_number_that_is_not_roots() -> None:
    """A name could be anybody's: Kubernetes' runAsNonRoot refuses it."""
    users = [line.split()[1] for line in (ROOT / "Dockerfile").read_text().splitlines() if line.startswith("USER ")]
    uid, gid = users[-1].split(":")
    assert int(uid) > 0
    assert int(gid) > 0
