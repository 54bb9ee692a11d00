"""`starter.py up`, as a process of its own: ready, alone, whole after a death, gone without a trace."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import shlex
import shutil
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from devstack.processes.records import wait_until_gone
from devstack.servers.postgres import EmbeddedPostgres
from testing.waiting import PATIENCE_S, eventually
from tests.embedded_fixtures import listening

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.timeout(180)


class Command:
    """A running `starter.py` command, and what it says."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.said: list[str] = []

    async def prints(self) -> dict[str, Any]:
        """Wait for a line of JSON on standard output."""
        assert self.process.stdout is not None
        line = await self._line(self.process.stdout)
        assert line, f"it ended instead: {await self.rest()}"
        found: dict[str, Any] = json.loads(line)
        return found

    async def says(self, holds: Callable[[str], bool]) -> str:
        """Wait for such a line on standard error."""
        assert self.process.stderr is not None
        while line := await self._line(self.process.stderr):
            self.said.append(line)
            if holds(line):
                return line
        raise AssertionError(f"it ended without saying so: {self.said}")

    async def rest(self) -> str:
        """Everything on standard error until it ends."""
        assert self.process.stderr is not None
        return "".join(self.said) + (await self.process.stderr.read()).decode()

    async def ends(self) -> int:
        """Wait until it has ended; its exit code."""
        async with asyncio.timeout(PATIENCE_S):
            return await self.process.wait()

    async def _line(self, stream: asyncio.StreamReader) -> str:
        async with asyncio.timeout(PATIENCE_S):
            return (await stream.readline()).decode()


@asynccontextmanager
async def starter(*arguments: str, **env: str) -> AsyncIterator[Command]:
    """A command in a process of its own; it is killed if it outlives the context."""
    ours = {n: v for n, v in os.environ.items() if not n.startswith(("SAS_", "TEMPORAL_"))}
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(ROOT / "starter.py"), *arguments, cwd=ROOT, env=ours | env, stdout=PIPE, stderr=PIPE
    )
    try:
        yield Command(process)
    finally:
        if process.returncode is None:
            process.terminate()
        await process.communicate()


@pytest.fixture
async def state_dir(tmp_path: Path) -> AsyncIterator[Path]:
    """A state folder; PostgreSQL's data, which may be outside, is deleted in the end."""
    folder = tmp_path / "state"
    yield folder
    await asyncio.to_thread(EmbeddedPostgres(folder).delete_data)


def up(state_dir: Path, **env: str) -> Any:
    """`up`, with its addresses as JSON."""
    return starter("up", "--state-dir", str(state_dir), "-o", "json", **env)


async def answer(*arguments: str, **env: str) -> tuple[int, Any, str]:
    """Exit code of a command that ends, its data, and what it said."""
    async with starter(*arguments, "-o", "json", **env) as command:
        out, err = await command.process.communicate()
    return command.process.returncode or 0, json.loads(out or b"null"), err.decode()


def secret_variables(file: str) -> dict[str, str]:
    """Variables in a file that only its owner can read."""
    path = Path(file)
    assert path.stat().st_mode & 0o777 == 0o600
    found: dict[str, str] = json.loads(path.read_text())
    return found


def alive(pids: dict[str, int]) -> list[str]:
    """Those that still run."""
    return [name for name, pid in pids.items() if psutil.pid_exists(pid)]


async def test_up_is_alone_on_its_folder_and_restarts_its_worker(state_dir: Path) -> None:
    async with up(state_dir) as first:
        stack = await first.prints()
        assert secret_variables(stack["env_file"])["TEMPORAL_ADDRESS"] == stack["temporal"]

        async with up(state_dir) as second:
            assert await second.ends() == 4
            refusal = await second.rest()
        assert f"process {stack['pids']['up']}" in refusal
        assert stack["ui"] in refusal

        os.kill(stack["pids"]["worker-2"], signal.SIGKILL)
        await first.says(lambda line: "worker-2" in line and "signal 9" in line)
        line = await first.says(lambda line: "worker-2" in line and "is back as process" in line)
        assert int(line.split("process ")[1].split()[0]) != stack["pids"]["worker-2"]

        first.process.send_signal(signal.SIGTERM)
        assert await first.ends() == 0
    assert alive(stack["pids"]) == []
    assert not os.path.exists(stack["env_file"])  # noqa: ASYNC240 (a look at the local disk)


async def test_next_up_adopts_and_stops_a_killed_ones_servers(state_dir: Path) -> None:
    async with up(state_dir) as first:
        left = (await first.prints())["pids"]
        first.process.kill()
        await first.ends()

    async with up(state_dir) as second:
        found = (await second.prints())["pids"]
        assert {n for n in found if found[n] == left[n]} == {"postgres", "temporal"}
        assert set(alive(left)) == {"postgres", "temporal"}

        second.process.send_signal(signal.SIGINT)
        assert await second.ends() == 0
    assert alive({**left, **{f"{n} again": pid for n, pid in found.items()}}) == []


@pytest.mark.failure(108)
async def test_whoever_is_elsewhere_can_reach_no_server_of_the_stack(state_dir: Path) -> None:
    """Commands are not signed: who may reach Temporal or a database may ask for undo."""
    async with up(state_dir) as command:
        pids = (await command.prints())["pids"]
        members = [psutil.Process(pid) for pid in pids.values()]
        family = {*members, *(child for m in members for child in m.children(recursive=True))}
        found = listening(*family)
        assert {ip for ip, _ in found} == {"127.0.0.1"}
        assert len({port for _, port in found}) >= 5, "PostgreSQL, Temporal and its UI, the services, callbacks"

        command.process.send_signal(signal.SIGTERM)
        assert await command.ends() == 0


async def test_interrupted_start_leaves_nothing_behind(state_dir: Path) -> None:
    async with up(state_dir) as command:
        await command.says(lambda line: "PostgreSQL" in line)
        children = {str(c.pid): c.pid for c in psutil.Process(command.process.pid).children(recursive=True)}
        command.process.send_signal(signal.SIGTERM)
        assert await command.ends() == 130
    assert children
    assert alive(children) == []


@pytest.fixture
def users_shell(tmp_path: Path) -> dict[str, str]:
    """What a user's shell may hold of other work, and a package with a definition kept elsewhere."""
    profiles = tmp_path / "config" / "temporalio" / "temporal.toml"
    profiles.parent.mkdir(parents=True)
    profiles.write_text('[profile.default]\naddress = "127.0.0.1:1"\napi_key = "key"\nnamespace = "cloud"\n')
    packages = tmp_path / "packages" / "kept_elsewhere"
    shutil.copytree(ROOT / "testing" / "definitions", packages)
    return {
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "PYTHONPATH": str(packages.parent),
        "SAS_DEFINITIONS": packages.name,
        "SSL_CERT_FILE": "/no/such/bundle.pem",
        "HTTPS_PROXY": "http://127.0.0.1:1",
        "PGHOST": "db.invalid",
        "PGHOSTADDR": "127.0.0.2",
        "PGOPTIONS": "-c nonsense=1",
        "PGSERVICE": "nowhere",
        "PGSSLMODE": "require",
        "PGCLIENTENCODING": "LATIN1",
        "PGTZ": "Asia/Tokyo",
    }


@pytest.mark.failure(97)
async def test_stack_ignores_shell_variables_that_lead_elsewhere(state_dir: Path, users_shell: dict[str, str]) -> None:
    of_the_cloud = {"TEMPORAL_ADDRESS": "127.0.0.1:1", "TEMPORAL_API_KEY": "key", "TEMPORAL_TLS": "true"}
    here = {**users_shell, "SAS_STATE_DIR": str(state_dir)}
    gift = json.dumps({"task_id": "gift-1", "definition": "gift", "record": {"sku": "TEA-01", "to": "ada@example.com"}})
    (file := state_dir.with_name("gift.json")).write_text(gift)
    async with up(state_dir, **users_shell, **of_the_cloud) as command:
        await command.prints()
        code, found, said = await answer("start", str(file), "--wait", **here)
        assert (code, found[0]["state"]) == (0, "Processed"), said
        code, _, said = await answer("list", **here, **of_the_cloud)
        assert (code, all(name in said for name in of_the_cloud)) == (2, True), said


@pytest.mark.failure(99)
async def test_two_stacks_that_start_at_once_share_nothing(tmp_path: Path) -> None:
    """Whatever port one takes from the other, each has its own services, callbacks and servers."""
    folders = [tmp_path / "one #1", tmp_path / "two?"]
    try:
        async with up(folders[0]) as one, up(folders[1]) as two:
            stacks = await asyncio.gather(one.prints(), two.prints())
            for place in ("postgres", "temporal", "ui", "simulators", "callbacks"):
                assert len({stack[place] for stack in stacks}) == 2, place
            async with httpx.AsyncClient() as http:
                named = [(await http.get(f"{s['simulators']}/health")).json()["state_dir"] for s in stacks]
                told = {(await http.get(f"{s['callbacks']}/health")).json()["deployment"] for s in stacks}
            assert named == [str(folder / "simulators") for folder in folders]
            assert len(told) == 2
    finally:
        for folder in folders:
            await asyncio.to_thread(EmbeddedPostgres(folder).delete_data)


@pytest.mark.failure(96)
async def test_up_refuses_a_setting_that_its_workers_could_not_use(tmp_path: Path) -> None:
    async with up(tmp_path / "state", SAS_POLL_INTERVAL="0") as command:
        assert await command.ends() == 2
        assert "SAS_POLL_INTERVAL: must be a duration" in await command.rest()
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file" / "state", tmp_path / "new\nline"):
        async with up(folder) as command:
            assert await command.ends() == 2
            assert "state folder" in await command.rest()


HOW_IT_IS_RUN = {
    "as the terminal's own program": ("exec {up}", ""),
    "in the background of a shell that tells nobody": ("{up} & exec {wait}", ""),
    "by a shell that is killed": ("{up}; true", "kill the shell"),
}


@pytest.mark.failure(102)
@pytest.mark.parametrize("how", HOW_IT_IS_RUN)
async def test_stack_ends_when_its_terminal_is_gone(how: str, state_dir: Path) -> None:
    line, and_then = HOW_IT_IS_RUN[how]
    out = state_dir.with_name("out.json")
    command = [sys.executable, str(ROOT / "starter.py"), "up", "--state-dir", str(state_dir), "-o", "json"]
    waiting = shlex.join([sys.executable, "-c", "import threading; threading.Event().wait()"])
    script = "set -m; " + line.format(up=f"{shlex.join(command)} >{shlex.quote(str(out))}", wait=waiting)
    leader, terminal = await asyncio.to_thread(run_in_terminal, script)
    try:
        stack = await printed(out)
        if and_then:
            os.kill(leader, signal.SIGKILL)
    finally:
        os.close(terminal)
    for pid in stack["pids"].values():
        assert await asyncio.to_thread(wait_until_gone, pid, 60), how
    with suppress(ChildProcessError):  # it was up itself, whose end was seen above
        await asyncio.to_thread(os.waitpid, leader, 0)
    assert not Path(stack["env_file"]).exists()  # noqa: ASYNC240 (a look at the local disk)


@pytest.mark.failure(102)
async def test_stack_outlives_its_terminal_if_nohup_started_it(state_dir: Path) -> None:
    out = state_dir.with_name("out.json")
    command = ["nohup", sys.executable, str(ROOT / "starter.py"), "up", "--state-dir", str(state_dir), "-o", "json"]
    quiet = f"{shlex.join(command)} >{shlex.quote(str(out))} 2>/dev/null </dev/null"
    leader, terminal = await asyncio.to_thread(run_in_terminal, f"{quiet}; true")
    try:
        stack = await printed(out)
    finally:
        os.close(terminal)
    await asyncio.to_thread(os.waitpid, leader, 0)
    assert set(alive(stack["pids"])) == set(stack["pids"])
    code, _, said = await answer("list", SAS_STATE_DIR=str(state_dir))
    assert code == 0, said
    os.kill(stack["pids"]["up"], signal.SIGTERM)
    for pid in stack["pids"].values():
        assert await asyncio.to_thread(wait_until_gone, pid, 60)


@pytest.mark.failure(102)
async def test_stack_ends_with_the_process_that_it_follows(state_dir: Path) -> None:
    """`make up` tells it so: a make that is killed leaves nothing behind."""
    command = [sys.executable, str(ROOT / "starter.py"), "up", "--state-dir", str(state_dir), "-o", "json"]
    script = f"SAS_PARENT_PID=$$ {shlex.join(command)}; true"
    make = await asyncio.create_subprocess_exec("/bin/sh", "-c", script, stdout=PIPE)
    try:
        stack = await Command(make).prints()
    finally:
        make.kill()
    for pid in stack["pids"].values():
        assert await asyncio.to_thread(wait_until_gone, pid, 60)


def run_in_terminal(script: str) -> tuple[int, int]:
    """Run a line of shell as the leader of a new terminal's session; its process id, and our end of the terminal."""
    pid, terminal = pty.fork()
    if pid == 0:
        signal.signal(
            signal.SIGHUP, signal.SIG_DFL
        )  # whoever runs the tests may have been told to outlive his terminal
        os.execv("/bin/sh", ["/bin/sh", "-c", script])  # noqa: S606 (no shell of ours in between)
    return pid, terminal


async def printed(out: Path) -> dict[str, Any]:
    """Wait for a line of JSON in a file."""

    async def there() -> bool:
        return out.exists() and out.read_text().endswith("\n")  # noqa: ASYNC240 (a look at the local disk)

    await eventually(there)
    found: dict[str, Any] = json.loads(out.read_text())  # noqa: ASYNC240 (likewise)
    return found
