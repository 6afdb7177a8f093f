"""Replay memory events: what was allocated from when to when, and how much was active at each moment."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from pipeline.errors import UserError
from pipeline.instruments.memory.recording import Recording
from pipeline.instruments.memory.snapshot import Frame, MemoryEvent

BEFORE = -1


# Compared by identity: no two allocations are the same, and comparing fields would be slow for so many.
@dataclass(frozen=True, eq=False)
class Allocation:
    """A piece of memory, allocated by the event `start` and released by the event `end`.

    `start` is BEFORE for memory from before the first event; `end` is the number of events if it outlived the last.
    """

    address: int
    size_bytes: int
    start: int
    end: int
    frames: tuple[Frame, ...] = ()

    def is_alive_at(self, position: int) -> bool:
        """Tell whether it is allocated after `position` events."""
        return self.start < position <= self.end


@dataclass(frozen=True)
class Timeline:
    """The active bytes after each event, by category.

    Shapes: `active_bytes[category]` is (events + 1,) int64; index 0 is the state before the first event.
    """

    active_bytes: dict[str, np.ndarray]

    @property
    def total_bytes(self) -> np.ndarray:
        """The active bytes of all categories together."""
        return np.sum(list(self.active_bytes.values()), axis=0)

    def peak(self, begin: int, end: int) -> int:
        """Return the position of the highest total in [begin, end], the first of equals."""
        return begin + int(np.argmax(self.total_bytes[begin : end + 1]))

    def composition(self, position: int) -> dict[str, int]:
        """Return the bytes of each category at a position."""
        return {category: int(series[position]) for category, series in self.active_bytes.items()}


def replay(events: Sequence[MemoryEvent]) -> list[Allocation]:
    """Turn events into allocations, in the order in which they were made.

    Memory that is released without having been allocated is from before the first event. Raises UserError if an address
    is allocated while it is in use: events are missing.
    """
    live: dict[int, int] = {}
    found: list[Allocation] = []
    for index, event in enumerate(events):
        if event.is_alloc:
            if event.address in live:
                raise UserError(
                    f"memory event {index} allocates {event.address:#x}, which is in use: events are missing"
                )
            live[event.address] = index
        else:
            start = live.pop(event.address, BEFORE)
            frames = events[start].frames if start != BEFORE else ()
            found.append(Allocation(event.address, event.size_bytes, start, index, frames))
    for address, start in live.items():
        found.append(Allocation(address, events[start].size_bytes, start, len(events), events[start].frames))
    return sorted(found, key=lambda allocation: allocation.start)


def timeline(allocations: Iterable[Allocation], categories: Mapping[Allocation, str], event_count: int) -> Timeline:
    """Add up the active bytes of each category after each event."""
    deltas = {name: np.zeros(event_count + 2, dtype=np.int64) for name in dict.fromkeys(categories.values())}
    for allocation in allocations:
        delta = deltas[categories[allocation]]
        delta[allocation.start + 1] += allocation.size_bytes
        delta[allocation.end + 1] -= allocation.size_bytes
    return Timeline({name: np.cumsum(delta[:-1]) for name, delta in deltas.items()})


def phase_spans(recording: Recording) -> list[tuple[str, int, int]]:
    """Return each phase with the positions at which it begins and ends, in order."""
    ends = [begin for _, begin in recording.phases[1:]] + [len(recording.events)]
    return [(name, begin, end) for (name, begin), end in zip(recording.phases, ends, strict=True)]


def thin_out(total: np.ndarray, buckets: int, keep: Iterable[int] = ()) -> list[int]:
    """Choose few positions to draw a series with: the lowest and the highest of each of `buckets` parts.

    So no peak is lost. The first position, the last and those in `keep` are chosen too.
    """
    chosen = {0, len(total) - 1, *keep}
    for part in np.array_split(np.arange(len(total)), min(buckets, len(total))):
        chosen |= {int(part[np.argmin(total[part])]), int(part[np.argmax(total[part])])}
    return sorted(chosen)


@cache  # many allocations share few call stacks
def frames_within(frames: tuple[Frame, ...], place: Path) -> tuple[Frame, ...]:
    """Return the frames whose file is `place` or lies in that folder, innermost first."""
    return tuple(frame for frame in frames if Path(frame.filename).is_relative_to(place))
