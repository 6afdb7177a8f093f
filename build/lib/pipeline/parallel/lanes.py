"""Run collectives beside the computation: on a CUDA stream of their own, or on the backend's threads."""

from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.distributed as dist

# Starts a collective; takes async_op.
Start = Callable[..., Any]


class Pending(Protocol):
    """A collective that was started."""

    def wait(self) -> None:
        """Wait for its result: a CUDA stream waits, not the host; on a CPU the host."""


class Lane(Protocol):
    """A place where collectives run in the order of their start."""

    def begin(self) -> None:
        """Note where the computation runs from now on: on a GPU, the current stream."""

    def start(self, collective: Start, before: Callable[[], Any] | None, after: Callable[[], Any] | None) -> Pending:
        """Run `before`, the collective and `after`, in this order, after all computation launched so far.

        Whatever they read or write must stay allocated until wait().
        """


def lane(device: torch.device) -> Lane:
    """Make a lane for the default process group: a stream with NCCL, threads with any other backend."""
    return _StreamLane(device) if dist.get_backend() == dist.Backend.NCCL else _ThreadLane()


class _StreamLane:
    def __init__(self, device: torch.device):
        self._stream = torch.cuda.Stream(device)
        self._computation = torch.cuda.current_stream(device)
        self._ready = torch.cuda.Event()

    def begin(self) -> None:
        # Asked for once a step: the answer takes as long as the launch of a kernel.
        self._computation = torch.cuda.current_stream(self._stream.device)

    def start(self, collective: Start, before: Callable[[], Any] | None, after: Callable[[], Any] | None) -> Pending:
        self._ready.record(self._computation)
        self._stream.wait_event(self._ready)
        torch.cuda.set_stream(self._stream)
        try:
            if before is not None:
                before()
            collective(async_op=False)  # on this stream, without the host waiting
            if after is not None:
                after()
        finally:
            torch.cuda.set_stream(self._computation)
        return _OnStream(self._stream.record_event(), self._computation)


class _OnStream:
    def __init__(self, event: torch.Event, waiting: torch.cuda.Stream):
        self._event, self._waiting = event, waiting

    def wait(self) -> None:
        self._waiting.wait_event(self._event)


class _ThreadLane:
    def begin(self) -> None:
        pass

    def start(self, collective: Start, before: Callable[[], Any] | None, after: Callable[[], Any] | None) -> Pending:
        if before is not None:
            before()
        return _OnThread(collective(async_op=True), after)


class _OnThread:
    def __init__(self, work: dist.Work, after: Callable[[], Any] | None):
        self._work, self._after = work, after

    def wait(self) -> None:
        self._work.wait()
        if self._after is not None:
            self._after()
