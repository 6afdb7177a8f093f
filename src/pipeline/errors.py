"""The two ways in which a run ends without figures, apart from a bug."""

import sys
from collections.abc import Callable
from typing import Any


class UserError(Exception):
    """Input that cannot be used; its message is one line for the person who gave it."""


class Skipped(Exception):
    """A measurement that this machine cannot make; its message is the reason."""


def or_exit(program: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a function returns; a UserError ends the process with one line on standard error."""
    try:
        return function(*arguments)
    except UserError as error:
        print(f"{program}: {error}", file=sys.stderr)
        sys.exit(1)
