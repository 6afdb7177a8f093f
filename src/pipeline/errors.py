"""Bad input and skipped measurements: the two expected ways to end without values."""

import functools
import sys
import traceback
from collections.abc import Callable
from typing import Any


class UserError(Exception):
    """Input that cannot be used; its message is one line for the person who gave it.

    Unprintable characters are escaped: messages name files, whose names may hold line breaks and terminal commands.
    """

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


class Skipped(Exception):
    """A measurement that this machine cannot make; its message is the reason."""


def or_exit(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function for Snakemake; on a UserError, print one line on standard error and exit with code 1."""
    try:
        return function(*arguments)
    except UserError as error:
        print(f"snakemake: {error}", file=sys.stderr)
        sys.exit(1)


def exit_on_error(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make an error in an input function end the run; Snakemake itself would treat existing outputs as up to date."""

    @functools.wraps(function)
    def wrapper(*arguments: Any) -> Any:
        try:
            return or_exit(function, *arguments)
        except Exception:
            traceback.print_exc()
            sys.exit(1)

    return wrapper


def printable(text: str) -> str:
    r"""Return a text with unprintable characters, line breaks included, escaped as Python does: `\n`."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
