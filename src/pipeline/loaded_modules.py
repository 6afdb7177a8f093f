"""The project's modules that a measurement has imported: in this process, and in those that it started."""

import sys
from collections.abc import Iterable

_loaded_elsewhere: set[str] = set()


def loaded_modules() -> set[str]:
    """Return the names of the project's modules that this process has imported, and of those that it was told of."""
    return {name for name in sys.modules if name.partition(".")[0] == "pipeline"} | _loaded_elsewhere


def add_loaded_elsewhere(names: Iterable[str]) -> None:
    """Add what a process that this one started, such as a rank, has imported."""
    _loaded_elsewhere.update(names)
