"""A package of one's own, in an environment that has nothing of ours but the installed wheel."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from temporalio.client import Client

from runtime.settings import Settings
from testing import ROOT
from testing.settings import environment
from testing.simulators import Simulators
from testing.waiting import eventually
from tests.installed import Environment, installed_environment

GUEST = {"name": "Ada", "row": "TEA-01", "seats": 2}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """With the wheel, and beside it the project of `tests/own_project`."""
    found = installed_environment(tmp_path_factory.mktemp("environment"))
    found.install(ROOT / "tests/own_project")
    return found


class Project:
    """The project at work: its worker and its commands, on this test's databases and services."""

    def __init__(self, installed: Environment, settings: Settings, simulators: Simulators, temporal: str) -> None:
        self._installed, self.folder = installed, settings.state_dir
        ours = {n: v for n, v in environment(settings).items() if not n.startswith(("SAS_SERVICES", "SAS_SAMPLES"))}
        self._book = str(self.folder / "book.sqlite")
        services = {"SAS_SERVICES__HALL": f"{simulators.url}/stock", "SAS_ACCESS__GUEST_BOOK__DATABASE": self._book}
        self._variables = {**ours, **services, "TEMPORAL_ADDRESS": temporal}
        self.book("CREATE TABLE line (key TEXT PRIMARY KEY, text TEXT, struck INTEGER NOT NULL DEFAULT 0)")

    def book(self, statement: str) -> list[Any]:
        """Ask the guest book."""
        with closing(sqlite3.connect(self._book)) as connection, connection:
            return connection.execute(statement).fetchall()

    def sas(self, *arguments: str) -> Any:
        """Run a command to its end; what it printed as JSON."""
        done = self._installed.run("sas", *arguments, "-o", "json", cwd=self.folder, **self._variables)
        return json.loads(done.stdout)

    def submit(self, task_id: str) -> str:
        """Submit a task, and wait until it is settled; its state."""
        file = self.folder / f"{task_id}.jsonl"
        file.write_text(json.dumps({"task_id": task_id, "definition": "seating", "record": GUEST}))
        (task,) = self.sas("start", str(file), "--wait")
        return str(task["state"])

    @contextmanager
    def worker(self) -> Iterator[Path]:
        """Its worker, told to stop in the end; the file that is there once it is ready."""
        program = str(self._installed.folder / "bin" / "sas-worker")
        variables = self._installed.variables(**self._variables)
        with (self.folder / "worker.log").open("w") as log:
            process = subprocess.Popen([program], env=variables, cwd=self.folder, stdout=log, stderr=log)
        try:
            yield self.folder / "alive"
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
        finally:
            process.kill()
            process.wait()
            print((self.folder / "worker.log").read_text()[-5000:])


@pytest.fixture
async def project(installed: Environment, settings: Settings, simulators: Simulators, client: Client) -> Project:
    """The project, without a worker yet."""
    return Project(installed, settings, simulators, client.service_client.config.target_host)


@pytest.mark.demand("G12")
async def test_own_package_does_and_undoes_and_asks(project: Project, simulators: Simulators, task_id: str) -> None:
    """Its worker wants the addresses of its own services only."""
    simulators.fault("stock", "lost_reply", times=1, match={"task_id": task_id})
    with project.worker() as ready:

        async def is_ready() -> bool:
            return ready.exists()

        await eventually(is_ready)
        assert project.submit(task_id) == "Processed"
        assert simulators.live(task_id) == {"stock": 1}
        ((_, text, struck),) = project.book("SELECT * FROM line")
        assert (text[:4], struck) == ("Ada:", 0)
        assert simulators.calls("stock", task_id) == 1, "the reply was lost, so it asked and did not send again"
        project.sas("compensate", task_id, "--reason", "the guest is ill", "--wait")
        assert project.sas("show", task_id)["state"] == "Compensated"
    assert simulators.live(task_id) == {}
    assert project.book("SELECT struck FROM line") == [(1,)]


def test_own_package_survives_a_rehearsal(installed: Environment, tmp_path: Path) -> None:
    """Its worker dies once in each call, forward and undone; both services are stand-ins."""
    record = tmp_path / "guest.jsonl"
    record.write_text(json.dumps({"record": GUEST}))
    done = installed.run(
        *("sas", "rehearse", "seating", "--record", str(record), "--only", "sent:", "--runners", "1", "-o", "json"),
        cwd=tmp_path,
    )
    found = json.loads(done.stdout)
    assert (found["cases"], found["kills"], found["problems"], found["unfired"]) == (4, 4, [], [])


def test_new_package_passes_check_and_its_own_test_at_once(installed: Environment, tmp_path: Path) -> None:
    installed.run("sas", "new", "loyalty_points", cwd=tmp_path)
    assert "Undo" in (tmp_path / "loyalty_points/loyalty_points/definitions.py").read_text()
    installed.install(tmp_path / "loyalty_points")
    shown = installed.run("sas", "check", "loyalty_points", cwd=tmp_path).stdout
    assert "loyalty_points.take_back" in shown
    tested = installed.run("python", "-m", "pytest", "-q", "loyalty_points", cwd=tmp_path)
    assert "3 passed" in tested.stdout


def test_new_package_replaces_the_image_of_every_service_of_ours(installed: Environment, tmp_path: Path) -> None:
    installed.run("sas", "new", "fresh", cwd=tmp_path)
    ours = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    override = (tmp_path / "fresh/compose.override.yml").read_text().replace("!reset null", "null")
    theirs = yaml.safe_load(override)["services"]
    built = {name for name, s in ours.items() if "APP_IMAGE" in s["image"] and "demo" not in s.get("profiles", [])}
    assert theirs.keys() == built
    assert {s.get("image") for s in theirs.values()} == {"fresh:local", None}
    assert [name for name, service in theirs.items() if "image" not in service] == ["agents-payments"]


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        ("Not-A-Name", 2, "NAME must match"),
        ("class", 2, "no word of Python"),
        ("json", 4, "there is a package 'json' already"),
        ("seating", 4, "there is a package 'seating' already"),
    ],
)
def test_new_package_has_a_name_that_is_free(
    installed: Environment, tmp_path: Path, name: str, code: int, said: str
) -> None:
    done = installed.run("sas", "new", name, cwd=tmp_path, check=False)
    assert (done.returncode, said in done.stderr) == (code, True), done.stderr


def test_new_package_overwrites_nothing(installed: Environment, tmp_path: Path) -> None:
    (tmp_path / "fresh").mkdir()
    done = installed.run("sas", "new", "fresh", cwd=tmp_path, check=False)
    assert (done.returncode, "fresh exists: choose another --folder" in done.stderr) == (4, True)
