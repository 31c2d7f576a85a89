"""How commands end: the exit codes, and what a person reads."""

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import NoReturn

import click

FOUND = 1
"""Something is not as it should be: what the command looks for was found."""
UNUSABLE = 2
"""Arguments, files or factories that cannot be used."""
OUR_FAULT = 3
"""rollcage itself failed."""
INTERRUPTED = 130


def unusable(why: str) -> NoReturn:
    """Ends the command over something that a person can act on: the line says how."""
    click.echo(f"error: {why}", err=True)
    sys.exit(UNUSABLE)


def tell(error: Exception, ours: str = "This is a fault of rollcage, not of what is tested") -> int:
    """Says what ended a command, and returns the exit code for it. What a person can act on is one line, below what a
    plugin raised; what else is raised is a fault of `ours`."""
    from sim.files import FileError
    from sim.registry import PluginError, RegistrationError
    from sim.schema import CaseError
    from sim.sut.interface import SutError

    if isinstance(error, PluginError) and error.__cause__ is not None:
        traceback.print_exception(error.__cause__)
    if isinstance(error, CaseError | FileError | SutError | RegistrationError | PluginError):
        click.echo(f"error: {error}", err=True)
        return UNUSABLE
    traceback.print_exception(error)
    click.echo(f"\n{ours}", err=True)
    return OUR_FAULT


@contextmanager
def guarded() -> Iterator[None]:
    """For all that may run a SUT: what it prints goes to standard error, and what it raises ends the command."""
    try:
        with redirect_stdout(sys.stderr):
            yield
    except (click.ClickException, click.exceptions.Exit, click.Abort, OSError):
        raise
    except Exception as error:
        sys.exit(tell(error))
