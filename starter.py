"""The command line: `python starter.py COMMAND`. Only the composition root; each command is in `cli/`."""

from __future__ import annotations

from cli.app import end_process, run_app
from cli.commands import app


def start() -> None:
    """Run the command that the arguments name, and end the process with it."""
    end_process(run_app(app))


if __name__ == "__main__":
    start()
