"""The instrument `bursts`: the time of a call among many enqueued back to back, as in nccl-tests.

Launch gaps and late processes do not count: the calls are enqueued while the GPU is still kept busy, and the first
call, in which the processes wait for each other, is not timed.
"""

from collections.abc import Callable
from time import perf_counter

import torch

from pipeline.compat.torch_private import keep_gpu_busy
from pipeline.instruments.sampling.step_timing import collections_off, recorded_event, synchronize

# The longest that enqueueing a call takes, and a GPU's clock rate: they set how long the GPU is kept busy beforehand.
ENQUEUE_S = 200e-6
CLOCK_HZ = 2e9


def time_burst_ms(call: Callable[[], object], device: torch.device, calls: int) -> float:
    """Return the milliseconds per call in a burst: by CUDA events on a GPU, by the host clock on a CPU."""
    on_gpu = device.type == "cuda"
    synchronize(device)
    with collections_off():
        if on_gpu:
            keep_gpu_busy(int((calls + 1) * ENQUEUE_S * CLOCK_HZ))
        call()
        begin, started = recorded_event() if on_gpu else None, perf_counter()
        for _ in range(calls):
            call()
        if begin is None:
            return (perf_counter() - started) * 1e3 / calls
        end = recorded_event()
        end.synchronize()
        return begin.elapsed_time(end) / calls
