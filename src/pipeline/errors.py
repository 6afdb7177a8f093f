"""The two ways in which a run ends without figures, apart from a bug."""

import sys
from collections.abc import Callable
from typing import Any


class UserError(Exception):
    """Input that cannot be used; its message is one line for the person who gave it.

    What cannot be printed is escaped: messages name files, whose names may hold line breaks and terminal commands.
    """

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


class Skipped(Exception):
    """A measurement that this machine cannot make; its message is the reason."""


def or_exit(program: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a function returns; a UserError ends the process with one line on standard error."""
    try:
        return function(*arguments)
    except UserError as error:
        print(f"{program}: {error}", file=sys.stderr)
        sys.exit(1)


def printable(text: str) -> str:
    r"""Return a text with whatever cannot be printed, line breaks among it, written as Python writes it: `\n`."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
