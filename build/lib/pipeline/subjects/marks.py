"""Which implementation of the user's own ran last, and what it changed for all: files, which survive who wrote them."""

import json
import mmap
from pathlib import Path

NONE = 0


def note_last(mark: Path, number: int | None) -> None:
    """Note that an implementation, by its number from 0, is about to run; None: that none did yet."""
    mark.write_bytes(bytes([NONE if number is None else number + 1]))
    if number is None:
        _changes(mark).unlink(missing_ok=True)


def noted(mark: Path) -> int | None:
    """Return the number of the implementation that ran last; None where none did."""
    return mark.read_bytes()[0] - 1 if mark.read_bytes()[0] != NONE else None


def quick_mark(mark: Path) -> mmap.mmap:
    """Return the byte of a mark, to be set to a number + 1 or NONE without a system call, between two samples."""
    with mark.open("r+b") as file:
        return mmap.mmap(file.fileno(), 1)


def note_changes(mark: Path, number: int, changes: list[str]) -> None:
    """Note what an implementation changed of the state that all share."""
    with _changes(mark).open("a", encoding="utf-8") as file:
        print(json.dumps([number, changes]), file=file)


def noted_changes(mark: Path) -> dict[int, list[str]]:
    """Return what implementations changed, by number."""
    found: dict[int, list[str]] = {}
    if _changes(mark).exists():
        for line in _changes(mark).read_text(encoding="utf-8").splitlines():
            number, changes = json.loads(line)
            found.setdefault(number, []).extend(changes)
    return found


def _changes(mark: Path) -> Path:
    return mark.with_suffix(".changes")
