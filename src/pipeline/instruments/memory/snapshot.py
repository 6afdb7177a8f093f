"""Read a memory snapshot: the file that torch.cuda.memory._dump_snapshot writes."""

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.errors import UserError

ALLOC, FREE = "alloc", "free_completed"


class Frame(NamedTuple):
    """One Python frame: the file, the line in it and the function."""

    filename: str
    line: int
    function: str


@dataclass(frozen=True)
class MemoryEvent:
    """One allocation, or one completed release, of `size_bytes` requested bytes at an address."""

    is_alloc: bool
    address: int
    size_bytes: int
    frames: tuple[Frame, ...] = ()  # innermost first; of allocations only


def read_events(path: Path, device_index: int = 0, expected: int | None = None) -> list[MemoryEvent]:
    """Read the events of one device in order.

    Sizes are the bytes requested; what the allocator rounds up is in its own statistics. A release counts once it is
    completed, since memory that another stream still uses is not free before. `expected`: how many events there must
    be. Raises UserError with a one-line reason if the file is missing, not a snapshot, damaged, or has dropped events.
    """
    snapshot = _load(path)
    try:
        entries = snapshot["device_traces"][device_index]
        stacks: dict[tuple[int, ...], tuple[Frame, ...]] = {}
        events = [_event(entry, stacks) for entry in entries if entry["action"] in (ALLOC, FREE)]
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise UserError(f"{path} is no memory snapshot: {type(error).__name__} {error}") from None
    if expected is not None and len(events) != expected:
        raise UserError(f"{path} has {len(events)} memory events of {expected}: the history was too short for them")
    return events


def _load(path: Path) -> Any:
    try:
        with path.open("rb") as file:
            return _PlainUnpickler(file).load()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    # A damaged pickle can fail in any of its instructions.
    except Exception as error:
        raise UserError(f"{path} is no memory snapshot, or damaged: {str(error) or type(error).__name__}") from None


class _PlainUnpickler(pickle.Unpickler):
    """Unpickle only numbers, text, lists and dicts, which a snapshot consists of, and never run code."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"holds {module}.{name}")


def _event(entry: dict[str, Any], stacks: dict[tuple[int, ...], tuple[Frame, ...]]) -> MemoryEvent:
    """Read an event; convert each call stack only once, since there are few and events share their frames."""
    is_alloc = entry["action"] == ALLOC
    frames = entry.get("frames", []) if is_alloc else []
    # By identity, since comparing frames takes as long as reading them; the snapshot keeps them alive.
    key = tuple(map(id, frames))
    if key not in stacks:
        stacks[key] = tuple(Frame(frame["filename"], frame["line"], frame["name"]) for frame in frames)
    return MemoryEvent(is_alloc, entry["addr"], entry["size"], stacks[key])
