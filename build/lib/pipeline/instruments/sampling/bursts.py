"""The instrument `bursts`: the time of a call among many enqueued back to back, as nccl-tests takes it.

Launch gaps and the lateness of other processes fall outside: the calls are enqueued while the GPU is still kept busy,
and the first of them, in which the processes wait for each other, is not timed.
"""

from collections.abc import Callable
from time import perf_counter

import torch

from pipeline.compat.torch_private import keep_gpu_busy
from pipeline.instruments.sampling.step_timing import collections_off, synchronize

# What a call's enqueueing takes at most, and a GPU's clock: together the length of the pause ahead of a burst.
ENQUEUE_S = 200e-6
CLOCK_HZ = 2e9


def time_burst_ms(call: Callable[[], object], device: torch.device, calls: int) -> float:
    """Return the milliseconds a call takes in a burst: by CUDA events on a GPU, by the host clock on a CPU."""
    synchronize(device)
    with collections_off():
        return (_on_gpu_ms(call, calls) if device.type == "cuda" else _on_cpu_ms(call, calls)) / calls


def _on_gpu_ms(call: Callable[[], object], calls: int) -> float:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    keep_gpu_busy(int((calls + 1) * ENQUEUE_S * CLOCK_HZ))
    call()
    begin.record()
    for _ in range(calls):
        call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)


def _on_cpu_ms(call: Callable[[], object], calls: int) -> float:
    call()
    started = perf_counter()
    for _ in range(calls):
        call()
    return (perf_counter() - started) * 1e3
