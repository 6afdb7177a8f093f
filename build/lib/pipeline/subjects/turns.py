"""Let implementations of the user's own take turns in one process, each as if it were alone there with ours."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pipeline.subjects import global_state
from pipeline.subjects.apart import OwnModules
from pipeline.subjects.files import find, split_place
from pipeline.subjects.marks import NONE, note_changes, quick_mark
from pipeline.subjects.naming import Subject


class Turns:
    """Who runs now: it has its own modules, and what it changes of the state that all share is undone after its turn.

    mark: the file in which to note who runs and what was undone, see `pipeline.subjects.marks`; None: not here.
    """

    def __init__(self, subjects: Sequence[Subject], mark: Path | None) -> None:
        self._mark, self._note = mark, bytearray(1) if mark is None else quick_mark(mark)
        self._numbers = {subject.name: number for number, subject in enumerate(subjects)}
        shared = {name.partition(".")[0] for name in sys.modules}
        sources = [tuple(find(split_place(place)[0]) for place in subject.locations) for subject in subjects]
        homes = {_key(each): OwnModules(each, shared) for each in sources}
        self._homes = [homes[_key(each)] for each in sources]
        self._undone: list[set[str]] = [set() for _ in subjects]
        self._state = global_state.read()
        self._running: int | None = None

    def begin(self, name: str) -> None:
        """End the turn before and begin that of an implementation, which may be one of ours."""
        self.end()
        number = self._numbers.get(name)
        self._note[0] = NONE if number is None else number + 1
        if number is not None:
            self._homes[number].put_in()
        self._running = number

    def end(self) -> None:
        """End the turn of who runs now, if it is one of the user's own.

        It stays noted until the next begins: what it did on a GPU may fail after it returned.
        """
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


def _key(sources: Sequence) -> frozenset:
    """Return what two of the user's own must share to share their modules: where these are imported from."""
    return frozenset((source.root, source.project) for source in sources)
