"""The project's modules that a measurement has imported, in this process and in processes that it started."""

import sys
from collections.abc import Iterable

_loaded_elsewhere: set[str] = set()


def loaded_modules() -> set[str]:
    """Return the names of the project's modules imported by this process and by those that reported to it."""
    return {name for name in sys.modules if name.partition(".")[0] == "pipeline"} | _loaded_elsewhere


def add_loaded_elsewhere(names: Iterable[str]) -> None:
    """Add the modules that a process started by this one, such as a rank, has imported."""
    _loaded_elsewhere.update(names)
