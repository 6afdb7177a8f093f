"""Run collectives alongside the computation: on a CUDA stream of their own, or on the backend's threads."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

# Starts a collective; takes async_op.
Start = Callable[..., Any]
Call = Callable[[], Any]


@dataclass(frozen=True)
class Pending:
    """A started collective; `wait` makes the CUDA stream wait for its result, or on a CPU the host."""

    wait: Callable[[], None]


class Lane:
    """Run collectives in the order they are started; this class uses the backend's threads."""

    def begin(self) -> None:
        """Note where the computation runs from now on: on a GPU, the current stream."""

    def start(self, collective: Start, before: Call | None, after: Call | None) -> Pending:
        """Run `before`, the collective and `after`, in this order, after all computation launched so far.

        Whatever they read or write must stay allocated until wait().
        """
        if before is not None:
            before()
        work = collective(async_op=True)

        def wait() -> None:
            work.wait()
            if after is not None:
                after()

        return Pending(wait)


def lane(device: torch.device) -> Lane:
    """Make a lane for the default process group: a stream with NCCL, threads with any other backend."""
    return _StreamLane(device) if dist.get_backend() == dist.Backend.NCCL else Lane()


class _StreamLane(Lane):
    def __init__(self, device: torch.device):
        self._stream = torch.cuda.Stream(device)
        self._computation = torch.cuda.current_stream(device)
        self._ready = torch.cuda.Event()

    def begin(self) -> None:
        # Asked for once a step, because asking takes as long as launching a kernel.
        self._computation = torch.cuda.current_stream(self._stream.device)

    def start(self, collective: Start, before: Call | None, after: Call | None) -> Pending:
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
        return Pending(partial(self._computation.wait_event, self._stream.record_event()))
