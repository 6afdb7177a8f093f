"""The instrument `memory`: records every allocation and release, with the code that made it.

    with record_memory(device, path) as recorder:
        recorder.phase("forward")
        ...
        recorder.identify("gradients", gradients)
    recording = recorder.read()

On CUDA the caching allocator keeps its own history; on a CPU torch.profiler sees each event of the allocator. Both
write the same file, a snapshot in the allocator's format (it opens in pytorch.org/memory_viz), and are read from it.
"""

from __future__ import annotations

import pickle
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile, record_function

from pipeline.compat.torch_private import ProfilerEvent, dump_memory_snapshot, profiler_tree, record_memory_history
from pipeline.instruments.memory.snapshot import ALLOC, FREE, MemoryEvent, read_events
from pipeline.instruments.sampling.step_timing import collections_off

# Far more than a training step needs: some 10⁵ events.
MAX_ENTRIES = 2_000_000

_MARK = "memory mark"


@dataclass(frozen=True)
class Identity:
    """The name of what lives at some addresses at a position in the events."""

    name: str
    position: int
    addresses: frozenset[int]


@dataclass(frozen=True)
class Recording:
    """All memory events in order, the position at which each phase begins, and the identified addresses."""

    events: list[MemoryEvent]
    phases: list[tuple[str, int]]
    identities: list[Identity] = field(default_factory=list)


class Recorder(ABC):
    """Note phases and what tensors are while memory is recorded; a position is the number of events before it."""

    device_index = 0

    def __init__(self, path: Path) -> None:
        self._path = path
        self._notes: list[tuple[str, frozenset[int] | None]] = []
        self._positions: list[int] = []
        self._event_count = 0

    def phase(self, name: str) -> None:
        """Begin a phase; it lasts until the next begins."""
        self._mark()
        self._notes.append((name, None))

    def identify(self, name: str, tensors: Iterable[Tensor]) -> None:
        """Say that the memory which these tensors occupy at this moment is `name`."""
        addresses = frozenset(tensor.untyped_storage().data_ptr() for tensor in tensors)
        self._mark()
        self._notes.append((name, addresses))

    def read(self) -> Recording:
        """Read back what was recorded, once recording has ended.

        Raises UserError with a one-line reason if the snapshot cannot be read, or does not have as many events as the
        allocator counted: its ring buffer was full and dropped the oldest.
        """
        events = read_events(self._path, self.device_index, expected=self._event_count)
        noted = [(name, at, found) for (name, found), at in zip(self._notes, self._positions, strict=True)]
        return Recording(
            events,
            [(name, position) for name, position, addresses in noted if addresses is None],
            [Identity(name, position, addresses) for name, position, addresses in noted if addresses is not None],
        )

    @abstractmethod
    def start(self) -> None:
        """Start recording."""

    @abstractmethod
    def stop(self) -> None:
        """Stop recording and write the snapshot."""

    @abstractmethod
    def _mark(self) -> None: ...


@contextmanager
def record_memory(device: torch.device, path: Path, max_entries: int = MAX_ENTRIES) -> Iterator[Recorder]:
    """Record the device's memory inside this context and write the snapshot to `path`, even after an error.

    On CUDA at most `max_entries` events are kept.
    """
    recorder = _OfCuda(path, device, max_entries) if device.type == "cuda" else _OfProfiler(path)
    recorder.start()
    try:
        yield recorder
    finally:
        recorder.stop()


class _OfCuda(Recorder):
    """Records the caching allocator's own history. Positions come from the allocator's counts of its events."""

    def __init__(self, path: Path, device: torch.device, max_entries: int):
        super().__init__(path)
        self._device, self._max_entries = device, max_entries
        self.device_index = device.index or 0

    def start(self) -> None:
        torch.cuda.init()  # before that there are no statistics
        # A tensor freed by a collection between these two calls would be in the history but not in the count.
        with collections_off():
            # Python frames only: C++ ones take far longer to look up, and none of them is ours.
            record_memory_history(
                "all", context="alloc", stacks="python", max_entries=self._max_entries, clear_history=True
            )
            self._before = self._count()

    def stop(self) -> None:
        with collections_off():
            self._event_count = self._count() - self._before
            dump_memory_snapshot(str(self._path))
        record_memory_history(None)

    def _mark(self) -> None:
        self._positions.append(self._count() - self._before)

    def _count(self) -> int:
        """Count the allocations and the completed releases of the process so far."""
        stats = torch.cuda.memory_stats(self._device)
        return stats["active.all.allocated"] + stats["active.all.freed"]


class _OfProfiler(Recorder):
    """Records the CPU allocator's events as torch.profiler sees them. Its clock orders them and the marks.

    The profiler only knows memory that it saw allocated, in this recording or an earlier one; other memory from before
    does not show up at all. It follows the thread that started it, and work that this thread handed to others. It
    misses releases elsewhere: a gloo thread runs a collective in its caller's name but drops the tensors in its own,
    which frees them if the caller has dropped them before. Code that records collectives must expect this, and compare
    the end of the recording with what is known to be held.
    """

    def start(self) -> None:
        self._profile = profile(activities=[ProfilerActivity.CPU], profile_memory=True, with_stack=True)
        self._profile.start()

    def stop(self) -> None:
        self._profile.stop()
        trace: list[dict[str, Any]] = []
        for node in sorted(self._nodes(), key=lambda node: node.start_time_ns):
            if node.tag == ProfilerEvent.Allocation:
                trace.append(_trace_entry(node))
            else:
                self._positions.append(len(trace))
        self._event_count = len(trace)
        self._path.write_bytes(pickle.dumps({"segments": [], "device_traces": [trace]}))

    def _mark(self) -> None:
        with record_function(_MARK):
            pass

    def _nodes(self) -> Iterator[Any]:
        """Yield the memory events of the CPU and the marks."""
        todo = list(profiler_tree(self._profile))
        while todo:
            node = todo.pop()
            todo += node.children
            if node.tag == ProfilerEvent.Allocation:
                fields: Any = node.extra_fields  # a union; the tag says which
                if fields.device.type == "cpu" and fields.alloc_size != 0:
                    yield node
            elif node.tag == ProfilerEvent.TorchOp and node.name == _MARK:
                yield node


def _trace_entry(node: Any) -> dict[str, Any]:
    size = node.extra_fields.alloc_size
    return {
        "action": ALLOC if size > 0 else FREE,
        "addr": node.extra_fields.ptr,
        "size": abs(size),
        "stream": 0,
        "time_us": node.start_time_ns // 1000,
        "frames": _frames(node) if size > 0 else [],
    }


def _frames(node: Any) -> list[dict[str, Any]]:
    """Return the Python frames of an event, innermost first.

    A call knows the line that its caller was at. If an operation is written as an operator (`a + b`), the profiler only
    knows the function around it, and the frame has that function's first line.
    """
    calls = []
    while (node := node.parent) is not None:
        if node.tag in (ProfilerEvent.PyCall, ProfilerEvent.PyCCall):
            calls.append(node)
    states = [call.extra_fields.caller for call in calls]
    if calls and calls[0].tag == ProfilerEvent.PyCall:
        states.insert(0, calls[0].extra_fields.callsite)
    return [_frame(state.file_name, state.line_number, state.function_name) for state in states]


@cache  # events share one object per frame, as in the allocator's snapshots
def _frame(filename: str, line: int, name: str) -> dict[str, Any]:
    return {"filename": _whole_path(filename), "line": line, "name": name}


@cache
def _whole_path(filename: str) -> str:
    """Undo what the profiler does to a path: it cuts off the entry of sys.path that the file was found under."""
    found = (Path(entry, filename) for entry in sys.path)
    return str(next((path for path in found if path.is_file()), filename))
