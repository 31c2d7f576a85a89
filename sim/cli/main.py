"""`rollcage`: the group of commands. Each is imported when it is asked for, so that `rollcage --help` answers at
once."""

import importlib
import sys
from typing import Any

import click

from sim.cli.exits import INTERRUPTED

_COMMANDS = {
    "hunt": "Search for worlds that break an invariant, and shrink them.",
    "preflight": "Would this vLLM or verl configuration start?",
    "replay": "Replay kept cases against the verdicts that they expect.",
    "show": "Print a case's world, its arithmetic spelled out, and the verdicts.",
    "waste": "How many decoded tokens are thrown away? What would a fix save?",
}
"""Command → what it does. It is the function of that name in the module of that name."""


class _Group(click.Group):
    def list_commands(self, _ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, _ctx: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(f"sim.cli.{name}"), name)
        return command

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Imports none of them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            sys.exit(INTERRUPTED)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="rollcage")
def main() -> None:
    """Finds budget overruns, routing violations and lost tokens in the code between an RL trainer and its inference
    servers, in virtual time, on a laptop."""
