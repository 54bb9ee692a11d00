"""`doctor`: checks each part in turn, and says what to do."""

from __future__ import annotations

from dataclasses import asdict

from rich.text import Text

from cli.app import ExitCode, Output, run
from cli.environment import find_settings
from cli.output import Format, plain, print_json, print_line
from cli.screen import print_rich
from operators.checks import all_checks
from operators.checks.finding import Check


def doctor(output: Output = Format.TEXT) -> ExitCode:
    """Check every part that this environment names: what can't be reached, what is missing, what to do."""
    return run(_doctor(output))


async def _doctor(output: Format) -> ExitCode:
    checks = []
    async for check in all_checks(find_settings()):
        checks.append(check)
        if output is Format.TEXT:
            _print(check)
    well = all(c.is_well for c in checks)
    if output is Format.JSON:
        print_json({"well": well, "checks": [asdict(c) | {"well": c.is_well} for c in checks]})
    return ExitCode.OK if well else ExitCode.UNREACHABLE


def _print(check: Check) -> None:
    print_rich(Text.assemble(_mark(check), plain(f" {check.what} ({check.where}): {check.found}")))
    if not check.is_well:
        print_line(f"    to do: {check.todo}")


def _mark(check: Check) -> Text:
    if check.elsewhere:
        return Text("–", style="dim")
    return Text("✓", style="green") if check.is_well else Text("✗", style="bold red")
