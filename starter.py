"""The command line: `python starter.py COMMAND`. Only the composition root; each command is in `cli/`."""

from __future__ import annotations

from cli.app import end_process, run_app
from cli.commands import app

if __name__ == "__main__":
    end_process(run_app(app))
