"""What options of several commands have in common: seconds, names that plugins may add to, and the plugins."""

import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import redirect_stdout
from typing import Any

import click

from sim.cli.exits import unusable
from sim.policies import PolicyError, parsed
from sim.registry import FROM_PLUGINS, RegistrationError, load_installed_plugins, load_plugin

# Seconds

_UNITS_S = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SPELLED = {
    **dict.fromkeys(("sec", "secs", "second", "seconds"), "s"),
    **dict.fromkeys(("min", "mins", "minute", "minutes"), "m"),
    **dict.fromkeys(("hr", "hrs", "hour", "hours"), "h"),
    **dict.fromkeys(("day", "days"), "d"),
}
_DURATION = re.compile(r"(\d+(?:\.\d+)?|\.\d+)\s*([a-z]+)")


def seconds_of(text: str) -> float | None:
    """The seconds that a number with a unit stands for (`1m`, `500 ms`, `2 hours`); None where it is none."""
    match = _DURATION.fullmatch(text.strip().lower())
    if match is None:
        return None
    scale = _UNITS_S.get(_SPELLED.get(match[2], match[2]))
    return None if scale is None else float(match[1]) * scale


class Seconds(click.FloatRange):
    """An option in seconds, which is a number without a unit."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        meant_s = seconds_of(value) if isinstance(value, str) else None
        if meant_s is not None:
            self.fail(f"{value!r} is not a number of seconds; did you mean {meant_s:.12g}?", param, ctx)
        seconds = super().convert(value, param, ctx)
        if math.isnan(seconds):  # no range keeps it out
            self.fail("nan is not a time", param, ctx)
        return seconds


# Plugins


def _import(_ctx: click.Context, _param: click.Parameter, modules: tuple[str, ...]) -> None:
    """Those that are named, and those of installed packages."""
    with redirect_stdout(sys.stderr):
        for module in modules:
            try:
                if not load_plugin(module):
                    click.echo(f"warning: --plugin {module} registers nothing", err=True)
            except RegistrationError as error:
                unusable(f"--{error}")
        try:
            load_installed_plugins()
        except RegistrationError as error:
            unusable(str(error))


plugins = click.option(
    "--plugin",
    multiple=True,
    metavar="MODULE",
    is_eager=True,
    expose_value=False,
    callback=_import,
    help="Import this first: it may register what a case can name, invariants and SUTs; repeatable.",
)
"""Eager, so that the other options and arguments know what it registers."""


# Policies and numbers


def _policies(_ctx: click.Context, param: click.Parameter, texts: tuple[str, ...]) -> Mapping[str, str]:
    try:
        return parsed(texts)
    except PolicyError as error:
        raise click.BadParameter(str(error), param=param) from None


policy_option = click.option(
    "--policy",
    "policies",
    multiple=True,
    metavar="KEY=VALUE",
    callback=_policies,
    help="Judge by this policy, whatever the SUT declares; repeatable. A budget's may stand alone: trajectory.",
)


class Numbers(click.ParamType[tuple[str, ...]]):
    """Invariants by number, with commas between them."""

    name = "numbers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        from sim.invariants.table import with_numbers

        numbers = tuple(each.strip() for each in value.split(",") if each.strip())
        try:
            with_numbers(numbers)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return numbers


class Registered(click.Choice[str]):
    """A choice of names that plugins may add to: they are asked for when it is made, not when it is declared."""

    def __init__(self, names: Callable[[], Iterable[str]], *, grows: bool = True) -> None:
        super().__init__(())
        self._names = names
        self._grows = grows

    def _choice(self) -> click.Choice[str]:
        return click.Choice(tuple(self._names()))

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return self._choice().convert(value, param, ctx)
        except click.BadParameter as error:
            if not self._grows:
                raise
            self.fail(f"{error.message.rstrip('.')}; {FROM_PLUGINS}", param, ctx)

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str | None:
        return self._choice().get_metavar(param, ctx)


def _dialects() -> Iterable[str]:
    from sim.dialects import DIALECTS

    load_installed_plugins()  # before `_import`, where it is for --help
    return DIALECTS


DIALECT = Registered(_dialects)
