"""The instrument `sustained`: the time of a call that a GPU holds while it does nothing else for seconds.

A GPU that rests between short turns clocks higher than its power limit allows for long. Here calls follow one another
without a pause, and nothing flushes the L2 cache between them. CUDA events stand between blocks of calls; the host
queues a few blocks ahead of the GPU, then waits for the oldest.
"""

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from pipeline.instruments.machine.power import PowerWatch
from pipeline.instruments.sampling.interleaving import Work
from pipeline.instruments.sampling.kernel_timing import Event
from pipeline.instruments.sampling.step_timing import CudaEvent, collections_off

# A block is long enough for the host to queue the next one meanwhile, and short enough to fit into a launch queue.
BLOCK_MS, MOST_CALLS = 10.0, 100
BLOCKS_AHEAD = 3


class WaitedEvent(Event, Protocol):
    """A moment of the GPU's work that the host can wait for."""

    def synchronize(self) -> None:
        """Wait until the GPU has come to it."""


Record = Callable[[], WaitedEvent]


@dataclass(frozen=True)
class Sustained:
    """The median time of a call over the second half, and the mean SM clock there; None where NVML does not tell."""

    median_ms: float
    sm_clock_mhz: float | None


@dataclass(frozen=True)
class _Blocks:
    """Blocks of calls between events; of each, whether the GPU may have waited for the host; the clock at the end."""

    events: list[WaitedEvent]
    exposed: list[bool]
    sm_clock_mhz: float | None


def cuda_event() -> WaitedEvent:
    """Record an event in the current stream."""
    event = CudaEvent(enable_timing=True)
    event.record()
    return event


def hold(work: Work, call_ms: float, duration_s: float, record: Record = cuda_event) -> Sustained | None:
    """Run a work back to back for so many seconds of the GPU's time; what prepares a call counts as part of it.

    call_ms: about how long a call takes. record: records an event behind what is queued.
    None where the GPU mostly waited for the host: that would be the host's time.
    """
    calls, duration_ms = min(max(1, round(BLOCK_MS / call_ms)), MOST_CALLS), 1e3 * duration_s
    with work.within(), collections_off():
        blocks = _run_blocks(work, calls, duration_ms, record)
    second_half = [
        (begin.elapsed_time(end) / calls, exposed)
        for (begin, end), exposed in zip(pairwise(blocks.events), blocks.exposed, strict=True)
        if blocks.events[0].elapsed_time(begin) >= duration_ms / 2
    ]
    held_ms = [time_ms for time_ms, exposed in second_half if not exposed]
    if 2 * len(held_ms) <= len(second_half):
        return None
    return Sustained(statistics.median(held_ms), blocks.sm_clock_mhz)


def _run_blocks(work: Work, calls: int, duration_ms: float, record: Record) -> _Blocks:
    """Queue blocks of so many calls until the GPU has worked that long, and watch its clock in the second half."""
    events, exposed, elapsed_ms, watch = [record()], [], 0.0, None
    while elapsed_ms < duration_ms:
        for _ in range(calls):
            work.call(work.prepare())
        exposed.append(events[-1].query())  # whatever was queued before this block is done
        events.append(record())
        if len(events) > BLOCKS_AHEAD:
            events[-BLOCKS_AHEAD].synchronize()
            elapsed_ms = events[0].elapsed_time(events[-BLOCKS_AHEAD])
        if watch is not None:
            watch.poll()
        elif elapsed_ms >= duration_ms / 2:
            watch = PowerWatch()
    events[-1].synchronize()
    return _Blocks(events, exposed, watch.over(len(exposed)).sm_clock_mhz if watch else None)
