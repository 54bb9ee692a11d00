"""What a process finds around it: streams that are closed, full or of another encoding, packages that others wrote."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from devstack.processes.ports import free_port
from runtime.settings import Settings
from testing import ROOT
from testing.bench import Bench
from testing.settings import environment

NAME = "Zoë 退款 → 😀"


async def shell(settings: Settings, line: str, stdin: str = "", **env: str) -> tuple[int, str, str]:
    """Exit code and output of a line of bash, in which `$STARTER` and `$WORKER` are the two commands."""
    commands = {"STARTER": f"{sys.executable} starter.py", "WORKER": f"{sys.executable} worker.py"}
    process = await asyncio.create_subprocess_exec(
        *("bash", "-o", "pipefail", "-c", line),
        env={
            **os.environ,
            **environment(settings),
            "NO_COLOR": "1",
            "TEMPORAL_ADDRESS": f"127.0.0.1:{free_port()}",
            **commands,
            **env,
        },
        cwd=ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate(stdin.encode())
    assert b"Traceback" not in err, err.decode()
    encoding = env.get("PYTHONIOENCODING", "utf-8")
    return process.returncode or 0, out.decode(encoding), err.decode(encoding)


@pytest.fixture
async def named(bench: Bench, order: dict[str, Any], task_id: str) -> str:
    """The id of a task that was submitted by somebody whose name is in no one-byte encoding."""
    await bench.submit(order, task_id, submitter=NAME)
    return task_id


@pytest.mark.failure(103)
@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "utf-8"])
async def test_any_encoding_prints_every_name_and_json_says_the_same(
    settings: Settings, named: str, encoding: str
) -> None:
    for command in ("list", f"show {named}"):
        code, out, err = await shell(settings, f"$STARTER {command}", PYTHONIOENCODING=encoding)
        assert (code, err) == (0, "")
        assert named in out
        code, out, err = await shell(settings, f"$STARTER {command} -o json", PYTHONIOENCODING=encoding)
        assert (code, err) == (0, "")
        data = json.loads(out)
        assert (data[0] if command == "list" else data)["submitter"] == NAME


async def test_locale_without_utf_8_shows_help_and_errors(settings: Settings) -> None:
    plain = {"LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    for line, expected in (("$STARTER --help", 0), ("$STARTER show -h", 0), (f"$STARTER show '{NAME}'", 2)):
        assert (await shell(settings, line, **plain))[0] == expected


@pytest.mark.failure(103)
@pytest.mark.parametrize("command", ["list", "list -o json", "show $ID", "show $ID -o json", "--help", "doctor"])
async def test_nobody_reads_on_and_that_is_no_error(settings: Settings, named: str, command: str) -> None:
    code, _, err = await shell(settings, f"$STARTER {command} | true", ID=named)
    assert (code, err) in ((0, ""), (5, "")), "of doctor alone: 5, as this test runs no worker"


@pytest.mark.failure(103)
@pytest.mark.parametrize("command", ["list", "list -o json", "show $ID", "show $ID -o json", "watch $ID"])
async def test_full_standard_output_is_said_and_is_an_error(settings: Settings, named: str, command: str) -> None:
    wait = "timeout 20 " if command.startswith("watch") else ""
    code, _, err = await shell(settings, f"{wait}$STARTER {command} > /dev/full", ID=named)
    assert (code, err) == (5, "error: standard output can't be written: No space left on device\n")


@pytest.mark.failure(103)
@pytest.mark.parametrize("closing", [">&-", "2>&-", ">&- 2>&-", "2>/dev/full", "<&-"])
async def test_closed_stream_swallows_what_it_is_given(settings: Settings, named: str, closing: str) -> None:
    for command, expected in (("list", 0), ("list -o json", 0), ("show $ID", 0), ("show nosuch", 3), ("--help", 0)):
        code, _, _ = await shell(settings, f"$STARTER {command} {closing}", ID=named)
        assert code == expected, command
    code, _, _ = await shell(settings, f"$STARTER submit --no-wait - {closing}", stdin="{}")
    assert code == 2


@pytest.mark.failure(98)
@pytest.mark.parametrize("variable", ["SAS_AGENTS", "SAS_DEFINITIONS"])
@pytest.mark.parametrize(
    ("package", "reason"),
    [
        ("nosuch", "ModuleNotFoundError: No module named 'nosuch'"),
        ("broken", "ZeroDivisionError: division by zero"),
        ("leaving", "SystemExit: 3"),
        ("lacking", "ModuleNotFoundError: No module named 'nowhere'"),
        ("..x", "TypeError: "),
        ("a/b", "ModuleNotFoundError: "),
    ],
)
async def test_unloadable_package_is_named_with_its_variable_and_reason(
    settings: Settings, tmp_path: Path, variable: str, package: str, reason: str
) -> None:
    for name, text in (("broken", "1 / 0"), ("leaving", "raise SystemExit(3)"), ("lacking", "import nowhere")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
        (tmp_path / name / "it.py").write_text(text)
    env = {"PYTHONPATH": str(tmp_path), variable: f"tests.courier,{package}"}
    for line in ("$WORKER", "$STARTER submit --no-wait -", "$STARTER doctor"):
        code, _, err = await shell(settings, line, stdin="{}", **env)
        assert code == 2, (line, err)
        assert f"error: {variable}: package {package!r} can't be loaded: {reason}" in err


@pytest.mark.failure(95, 98)
@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--agents nosuch", "--agents: there is no 'nosuch' (there are: cloud, mail, payments, shipping, stock)"),
        ("--agents payments,nosuch", "--agents: there is no 'nosuch' (there are: "),
        ("--agents ,", "--agents: none is named (there are: "),
        ("--roles nosuch", "--roles: there is no 'nosuch' (there are: scheduler, agents, supervisor, callbacks)"),
        ("--roles ''", "--roles: none is named (there are: "),
    ],
)
async def test_worker_asked_for_an_unknown_part_lists_those_there_are(
    settings: Settings, option: str, said: str
) -> None:
    code, _, err = await shell(settings, f"$WORKER {option}")
    assert code == 2
    assert f"error: {said}" in err
