"""The command line: `python starter.py COMMAND`. Only the composition root; each command is in `cli/`."""

from __future__ import annotations

import typer

from cli.act import compensate, migrate, supervise
from cli.app import leave, run_app
from cli.audit import audit
from cli.demo import demo
from cli.doctor import doctor
from cli.intake import start, submit
from cli.look import list_tasks, show, wait
from cli.repair import repair
from cli.resubmit import resubmit
from cli.services import services
from cli.up import up
from cli.watch import watch

app = typer.Typer(
    help="Submit tasks, look at them, act on them, and run everything on this machine.",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
FROM_START_TO_END = (up, demo, start, submit, show, watch, wait)
FOR_OPERATORS = (compensate, repair, resubmit, services, supervise, migrate, doctor, audit)
for command in (*FROM_START_TO_END, *FOR_OPERATORS):
    app.command()(command)
app.command("list")(list_tasks)

if __name__ == "__main__":
    leave(run_app(app))
