"""The frame of the command line: options that every command has, and the one place where errors become exit codes.

0 ok · 1 a task did not end well · 2 usage · 3 not found · 4 refused or conflict · 5 a dependency can't be reached ·
6 denied · 70 a bug · 124 a wait timed out · 130 interrupted
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import traceback
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from enum import IntEnum
from typing import Annotated, Any, NoReturn

import typer

from cli.output import Format, OutputFailed, flush, prepare_output, print_note
from domain.faults import Conflict, NotFound, Unreachable, UsageError
from domain.ids import TASK_ID
from domain.redaction import redact
from domain.text import clean


class ExitCode(IntEnum):
    """Exit codes."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    CONFLICT = 4
    UNREACHABLE = 5
    DENIED = 6
    BUG = 70
    TIMED_OUT = 124
    INTERRUPTED = 130


_GRAVEST_FIRST = (
    ExitCode.BUG,
    ExitCode.UNREACHABLE,
    ExitCode.CONFLICT,
    ExitCode.USAGE,
    ExitCode.TIMED_OUT,
    ExitCode.FAILED,
    ExitCode.OK,
)
_TYPER_ERROR: type[Exception] = next(
    c for c in reversed(typer.BadParameter.__mro__) if issubclass(c, Exception) and hasattr(c, "format_message")
)
"""The base of everything that typer says about a command line (it has been in several modules)."""


_CODES: tuple[tuple[type[Exception], ExitCode], ...] = (
    (NotFound, ExitCode.NOT_FOUND),
    (Conflict, ExitCode.CONFLICT),
    (UsageError, ExitCode.USAGE),
    (_TYPER_ERROR, ExitCode.USAGE),
    (Unreachable, ExitCode.UNREACHABLE),
    (OutputFailed, ExitCode.UNREACHABLE),
    (TimeoutError, ExitCode.TIMED_OUT),
    (PermissionError, ExitCode.DENIED),
)


def gravest(codes: Sequence[ExitCode]) -> ExitCode:
    """One exit code for many outcomes."""
    return next((c for c in _GRAVEST_FIRST if c in codes), ExitCode.OK)


def checked_id(task_id: str) -> str:
    """A well-formed task id.

    Raises:
        UsageError: It is not one.
    """
    if not TASK_ID.fullmatch(task_id):
        raise UsageError(f"task id {task_id!r} must match {TASK_ID.pattern}")
    return task_id


def required_text(option: str, text: str) -> str:
    """What a person gave as a reason or as evidence.

    Raises:
        UsageError: It says nothing.
    """
    found = clean(text).strip()[:500]
    if not found:
        raise UsageError(f"{option} must say something, not {text!r}")
    return found


def checked_ids(task_ids: list[str] | None) -> list[str]:
    """Well-formed task ids, each once."""
    return list(dict.fromkeys(checked_id(t) for t in task_ids or []))


Output = Annotated[Format, typer.Option("--output", "-o", help="text for people, json for programs")]
OneId = Annotated[str, typer.Argument(metavar="ID", callback=checked_id, help="task id")]
Ids = Annotated[list[str], typer.Argument(metavar="ID", callback=checked_ids, help="task ids")]
Wait = Annotated[bool, typer.Option("--wait", help="follow to the end")]
Reason = Annotated[str, typer.Option(help="why; kept with the request")]
By = Annotated[
    str, typer.Option("--by", metavar="WHO", envvar="SAS_BY", help="who asks; by default, the user that runs this")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="show what would change; write nothing")]
Timeout = Annotated[float, typer.Option(min=0, max=604_800, metavar="SECONDS", help="how long to wait at most")]


def run(work: Coroutine[Any, Any, ExitCode]) -> ExitCode:
    """Do a command's asynchronous work."""
    if "structlog" in sys.modules:  # what the command has loaded may log
        from runtime.logging import set_up_logging  # noqa: PLC0415 (it takes a while to load, and few commands log)

        set_up_logging("ERROR")
    return asyncio.run(work)


def run_app(app: typer.Typer, arguments: Sequence[str] | None = None) -> int:
    """Run a command; what it raised is said on standard error in a line. Returns the exit code."""
    prepare_output()
    logging.getLogger().setLevel(logging.ERROR)
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = app(given or ["--help"], standalone_mode=False, prog_name="starter.py")
        flush()
    except (BrokenPipeError, SystemExit):  # nobody reads on, as with `| head`; typer makes an end of it in its own way
        return ExitCode.OK
    except (KeyboardInterrupt, typer.Abort):
        print_note("interrupted")
        return ExitCode.INTERRUPTED
    except Exception as error:
        return _report(error)
    return code if isinstance(code, int) else ExitCode.OK


def end_process(code: int) -> NoReturn:
    """End the process at once: the SDK can abort while the interpreter ends."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(code)


def _report(error: Exception) -> ExitCode:
    code = _code_of(error)
    if code is ExitCode.BUG:
        print(redact("".join(traceback.format_exception(error))), end="", file=sys.stderr)
        return code
    print_note(f"error: {_message(error)}")
    if code is ExitCode.UNREACHABLE and not isinstance(error, OutputFailed):
        print_note("`python starter.py doctor` checks every part and says what to do")
    elif isinstance(error, _TYPER_ERROR):
        print_note("`python starter.py COMMAND --help` shows what there is")
    return code


def _code_of(error: Exception) -> ExitCode:
    if _is_of_temporal(error):
        return ExitCode.UNREACHABLE
    return next((code for kind, code in _CODES if isinstance(error, kind)), ExitCode.BUG)


def _is_of_temporal(error: Exception) -> bool:
    """Whether it is an answer of the server: there is none where the SDK, which takes a while, was not loaded."""
    sdk = sys.modules.get("temporalio.service")
    return sdk is not None and isinstance(error, sdk.RPCError)


def _message(error: Exception) -> str:
    if isinstance(error, _TYPER_ERROR):
        return str(error.format_message())  # type: ignore[attr-defined]
    if _is_of_temporal(error):
        return f"Temporal did not do it: {error}"
    if isinstance(error, TimeoutError):
        return f"timed out: {error}" if str(error) else "timed out"
    return str(error)
