"""The instrument `sustained`: the time of a call that a GPU sustains when it does nothing else for seconds.

A GPU that rests between short turns clocks higher than its power limit allows for long. Here calls run back to back,
and nothing flushes the L2 cache between them. CUDA events separate blocks of calls; the host queues a few blocks ahead
of the GPU, then waits for the oldest.
"""

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch

from pipeline.instruments.machine.power import PowerWatch
from pipeline.instruments.sampling.interleaving import Work
from pipeline.instruments.sampling.step_timing import collections_off, recorded_event

# A block is long enough for the host to queue the next one meanwhile, and short enough to fit into a launch queue.
BLOCK_MS, MOST_CALLS = 10.0, 100
BLOCKS_AHEAD = 3


@dataclass(frozen=True)
class Sustained:
    """The median time of a call over the second half, and the mean SM clock there, None if NVML does not report it."""

    median_ms: float
    sm_clock_mhz: float | None


def hold(
    work: Work, call_ms: float, duration_s: float, record: Callable[[], torch.cuda.Event] = recorded_event
) -> Sustained | None:
    """Run a work back to back for this many seconds of GPU time; preparing a call counts as part of it.

    call_ms: about how long a call takes. record: records an event after what is queued.
    Returns None if the GPU mostly waited for the host: that would be the host's time.
    """
    calls, duration_ms = min(max(1, round(BLOCK_MS / call_ms)), MOST_CALLS), 1e3 * duration_s
    # Events enclose blocks of calls; `exposed` has for each block whether the GPU may have waited for the host.
    events, exposed, elapsed_ms, watch = [record()], [], 0.0, None
    with work.within(), collections_off():
        while elapsed_ms < duration_ms:
            for _ in range(calls):
                work.call(work.prepare())
            exposed.append(events[-1].query())  # true if all that was queued before this block is done
            events.append(record())
            if len(events) > BLOCKS_AHEAD:
                events[-BLOCKS_AHEAD].synchronize()
                elapsed_ms = events[0].elapsed_time(events[-BLOCKS_AHEAD])
            if watch is not None:
                watch.poll()
            elif elapsed_ms >= duration_ms / 2:
                watch = PowerWatch()
        events[-1].synchronize()
    sm_clock_mhz = watch.over(len(exposed)).sm_clock_mhz if watch else None
    second_half = [
        (begin.elapsed_time(end) / calls, waited)
        for (begin, end), waited in zip(pairwise(events), exposed, strict=True)
        if events[0].elapsed_time(begin) >= duration_ms / 2
    ]
    held_ms = [time_ms for time_ms, waited in second_half if not waited]
    if 2 * len(held_ms) <= len(second_half):
        return None
    return Sustained(statistics.median(held_ms), sm_clock_mhz)
