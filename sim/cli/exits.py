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


@contextmanager
def guarded() -> Iterator[None]:
    """For all that may run a SUT: what it prints goes to standard error, and what a person can act on is one line. What
    else is raised is a fault of ours."""
    from sim.files import FileError
    from sim.registry import RegistrationError
    from sim.schema import CaseError
    from sim.sut.interface import SutError

    try:
        with redirect_stdout(sys.stderr):
            yield
    except (CaseError, FileError, SutError, RegistrationError) as error:
        unusable(str(error))
    except (click.ClickException, click.exceptions.Exit, click.Abort, OSError):
        raise
    except Exception as error:
        traceback.print_exception(error)
        click.echo("\nThis is a fault of rollcage, not of what is tested", err=True)
        sys.exit(OUR_FAULT)
