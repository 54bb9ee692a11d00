"""Brings docker-compose.yml up with an engine, breaks it, and has the audit judge: `python -m chaos.containers`.

Works in a project of its own name on the machine's engine, with secrets of its own, and removes it with its volumes.
Exit codes: 0 nothing wrong, 1 something is, 69 no engine with Compose here, or no images.
"""

from __future__ import annotations

import argparse
import json
import re
import secrets
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml

from domain.states import TaskState

ROOT = Path(__file__).parent.parent
COMPOSE = ("docker", "compose", "--project-name", "sas-containers", "--profile", "demo", "--env-file")
UNAVAILABLE = 69
PATIENCE_S = 240.0


@dataclass(frozen=True)
class Project:
    """The containers of one run. Methods raise CalledProcessError where a command fails."""

    env_file: Path

    def compose(self, *words: str, check: bool = True) -> str:
        """What the Compose command prints."""
        print(f"containers: {' '.join(words)}", file=sys.stderr)
        command = (*COMPOSE, str(self.env_file), *words)
        return subprocess.run(command, cwd=ROOT, check=check, stdout=subprocess.PIPE, text=True).stdout

    def cli(self, *words: str) -> str:
        """What a command of ours prints, run in a container of its own."""
        return self.compose("run", "--rm", "--no-TTY", "cli", "starter.py", *words)

    def tasks(self) -> list[dict[str, str]]:
        """All tasks, as `list` shows them."""
        found: list[dict[str, str]] = json.loads(self.cli("list", "-o", "json"))
        return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="containers", description=__doc__)
    parser.add_argument("--short", action="store_true", help="orders and the audit, without faults")
    arguments = parser.parse_args()
    if lacking := _lacking():
        print(f"containers: not run: {lacking}", file=sys.stderr)
        return UNAVAILABLE
    with TemporaryDirectory() as folder:
        env_file = Path(folder) / "env"
        example = (ROOT / "deploy/example.env").read_text()
        env_file.write_text(re.sub(r"=change-me.*", lambda _: f"={secrets.token_hex(32)}", example))
        return _run(Project(env_file), short=arguments.short)


def _run(project: Project, *, short: bool) -> int:
    try:
        project.compose("up", "--build", "--detach", "--wait", "--wait-timeout", "300")
        project.cli("submit", "examples/orders.jsonl")
        if not short:
            _break_it(project)
        _wait_until_settled(project)
        print(project.cli("audit", "--ledgers", "http://simulators:8790"))
    except subprocess.CalledProcessError as error:
        print(f"containers: {error.cmd[-3:]} ended with {error.returncode}: {error.stdout}", file=sys.stderr)
        return 1
    except TimeoutError as error:
        print(f"containers: {error}", file=sys.stderr)
        return 1
    finally:
        project.compose("down", "--volumes", "--timeout", "30", check=False)
    return 0


def _lacking() -> str:
    """What this needs and does not find, with the next step; empty if all is there."""
    try:
        for command in (("docker", "version"), ("docker", "compose", "version")):
            subprocess.run(command, check=True, capture_output=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return f"`{' '.join(command)}` fails here: start a Docker engine with Compose v2"
    away = [image for image in images() if not (_succeeds("image", "inspect", image) or _succeeds("pull", image))]
    return f"images that are not here and can't be pulled: {', '.join(away)}" if away else ""


def images() -> list[str]:
    """The images that are not ours: those of the compose file, and what the Dockerfile builds on."""
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"].values()
    named = {re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", s["image"]) for s in services if "APP_IMAGE" not in s["image"]}
    return sorted(named | set(re.findall(r"^FROM (\S+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE)))


def _succeeds(*words: str) -> bool:
    command = ("docker", *words)
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


def _break_it(project: Project) -> None:
    """Kill workers, take PostgreSQL away, scale, restart all."""
    project.compose("kill", "worker", "agents-payments")
    project.compose("start", "worker", "agents-payments")
    project.compose("stop", "postgres")
    project.compose("start", "postgres")
    project.compose("up", "--detach", "--wait", "--scale", "worker=3")
    project.compose("restart")
    project.compose("up", "--detach", "--wait")


def _wait_until_settled(project: Project) -> None:
    """Raises TimeoutError while tasks are open after `PATIENCE_S`."""
    give_up_at = time.monotonic() + PATIENCE_S
    while open_tasks := [t["task_id"] for t in project.tasks() if not TaskState(t["state"]).is_settled]:
        if time.monotonic() > give_up_at:
            raise TimeoutError(f"not settled after {PATIENCE_S:g} s: {', '.join(open_tasks)}")
        time.sleep(2)


if __name__ == "__main__":
    sys.exit(main())
