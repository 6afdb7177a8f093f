"""Let the user's implementations take turns in one process, each as if it were alone there with ours.

A file, the mark, tells who ran last even if the process dies: one byte, 0 for none, then lines of what was changed.
"""

import json
import mmap
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from pipeline.subjects import global_state
from pipeline.subjects.files import INSTALLED, find, split_place
from pipeline.subjects.naming import Subject

NONE = 0


def note_last(mark: Path, number: int | None) -> None:
    """Write a new mark with the number, from 0, of the implementation that is about to run; None: none has run yet."""
    mark.write_bytes(bytes([NONE if number is None else number + 1]))


def noted(mark: Path) -> int | None:
    """Return the number of the implementation that ran last, None if none has run."""
    number = mark.read_bytes()[0]
    return None if number == NONE else number - 1


def note_changes(mark: Path, number: int, changes: list[str]) -> None:
    """Add to the mark what an implementation changed in the shared state."""
    with mark.open("a", encoding="utf-8") as file:
        print(json.dumps([number, changes]), file=file)


def noted_changes(mark: Path) -> dict[int, list[str]]:
    """Return what implementations changed, by number."""
    found: dict[int, list[str]] = {}
    for line in mark.read_bytes()[1:].splitlines():
        number, changes = json.loads(line)
        found.setdefault(number, []).extend(changes)
    return found


class Turns:
    """Give each implementation turns with its own modules; undo and note its changes to global state."""

    def __init__(self, subjects: Sequence[Subject], mark: Path | None) -> None:
        self._mark, self._note = mark, bytearray(1)
        if mark is not None:
            with mark.open("r+b") as file:  # to set it between two samples without a system call
                self._note = mmap.mmap(file.fileno(), 1)  # type: ignore[assignment]
        self._numbers = {subject.name: number for number, subject in enumerate(subjects)}
        shared = {name.partition(".")[0] for name in sys.modules}
        sources = [tuple(find(split_place(place)[0]) for place in subject.locations) for subject in subjects]
        # Subjects that are imported from the same folders share their modules.
        folders = [frozenset(folder for each in of_one for folder in (each.root, each.project)) for of_one in sources]
        homes = {key: _OwnModules(key, shared) for key in folders}
        self._homes = [homes[key] for key in folders]
        self._undone: list[set[str]] = [set() for _ in subjects]
        self._state = global_state.read()
        self._running: int | None = None

    def begin(self, name: str) -> None:
        """End the last turn and begin that of an implementation, the user's or ours."""
        self.end()
        number = self._numbers.get(name)
        self._note[0] = NONE if number is None else number + 1
        if number is not None:
            self._homes[number].put_in()
        self._running = number

    def end(self) -> None:
        """End the current turn, if it is that of a user's implementation."""
        # The mark keeps naming it until the next turn: its work on a GPU may fail after it has returned.
        if self._running is None:
            return
        number, self._running = self._running, None
        self._homes[number].take_out()
        global_state.restore(self._state)
        undone = set(global_state.take_changes()) - self._undone[number]
        self._undone[number] |= undone
        if undone and self._mark is not None:
            note_changes(self._mark, number, sorted(undone))

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """Give an implementation a turn."""
        self.begin(name)
        try:
            yield
        finally:
            self.end()


class _OwnModules:
    """The modules in some folders, in sys.modules only during a turn; shared: packages that stay there for all."""

    def __init__(self, folders: Collection[Path], shared: Collection[str]) -> None:
        self._folders, self._shared = {folder.resolve() for folder in folders}, shared
        self._modules: dict[str, ModuleType] = {}
        self._path: list[str] = []
        self._outside: list[str] = []
        self._size = 0

    def put_in(self) -> None:
        """Put these modules into sys.modules, and restore their sys.path."""
        self._outside, sys.path[:] = list(sys.path), self._path or sys.path
        sys.modules.update(self._modules)
        self._size = len(sys.modules)

    def take_out(self) -> None:
        """Remove these modules, and those that this turn imported, until the next turn."""
        self._path, sys.path[:] = list(sys.path), self._outside
        if len(sys.modules) != self._size:
            self._modules |= {name: module for name, module in sys.modules.items() if self._has(name, module)}
        for name in self._modules:
            sys.modules.pop(name, None)

    def _has(self, name: str, module: ModuleType) -> bool:
        if name.partition(".")[0] in self._shared:
            return False
        places = [module.__file__] if getattr(module, "__file__", None) else getattr(module, "__path__", ())
        return any(
            path.is_relative_to(folder) and not INSTALLED & set(path.relative_to(folder).parts)
            for path in (Path(place).resolve() for place in places if isinstance(place, str))
            for folder in self._folders
        )
