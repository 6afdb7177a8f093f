"""The instrument `kernel_timing`: the device time of a call, without launch gaps, and the call's latency.

Three ways to take one sample (a `Sampler` of pipeline.instruments.sampling.interleaving):

- `KernelSampler`, on a GPU: the time between two CUDA events around the call. Before them the L2 cache is overwritten
  and the stream is kept busy, so that the host has queued every launch of the call before the GPU reaches the first
  event. If it has not, the sample is `exposed`: it may include launch gaps.
- `host_sampler`, on any device: the host clock, with a synchronize on both sides, and CUDA events on a GPU.
- `latency_sampler`, on any device: a lone call with nothing queued before it, after untimed calls of the same work;
  `enqueue` is the host's time until the call returns, `call` until the device has also done its work.
"""

from time import perf_counter

import torch

from pipeline.compat.torch_private import keep_gpu_busy
from pipeline.instruments.sampling.interleaving import Sample, Sampler, Work
from pipeline.instruments.sampling.step_timing import Timings, recorded_event, synchronize, time_once

# Twice the cache, so that lines which the hardware retains or spreads over two halves are evicted too.
FLUSHED_OVER_L2 = 2
# How long the stream is kept busy ahead of a call: a multiple of what queueing it took last time, which varies.
BUSY_OVER_ENQUEUE = 2.0
LEAST_BUSY_MS, MOST_BUSY_MS = 0.05, 20.0
CALIBRATION_CYCLES = 2_000_000
# How long untimed calls of the same work run before a timed lone call: about 15 of the shortest on a GPU.
SETTLING_MS = 1.0


class CudaQueue:
    """The queue of a CUDA device's current stream."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        l2_bytes = torch.cuda.get_device_properties(device).L2_cache_size
        self._over_l2 = torch.empty(FLUSHED_OVER_L2 * l2_bytes, dtype=torch.uint8, device=device)
        self._cycles_per_ms = self._measure_cycles_per_ms()

    def flush_l2(self) -> None:
        """Queue a write over a buffer larger than the L2 cache."""
        self._over_l2.zero_()

    def keep_busy(self, duration_ms: float) -> None:
        """Queue a kernel that spins for about this long."""
        keep_gpu_busy(int(duration_ms * self._cycles_per_ms))

    def mark(self) -> torch.cuda.Event:
        """Queue an event whose time can be read later."""
        return recorded_event()

    def synchronize(self) -> None:
        """Wait for the device."""
        synchronize(self._device)

    def _measure_cycles_per_ms(self) -> float:
        keep_gpu_busy(CALIBRATION_CYCLES)  # the first loads the kernel
        begin = self.mark()
        keep_gpu_busy(CALIBRATION_CYCLES)
        end = self.mark()
        self.synchronize()
        return CALIBRATION_CYCLES / begin.elapsed_time(end)


class KernelSampler:
    """Sample device times: L2 flushed, the stream kept busy until the host has queued the whole call."""

    def __init__(self, queue: CudaQueue) -> None:
        self._queue = queue
        self._enqueue_ms: dict[Work, float] = {}

    def __call__(self, work: Work) -> Sample:
        """Sample one call; it is exposed if the GPU reached it before all of it was queued."""
        queue = self._queue
        with work.within():
            argument = work.prepare()
            queue.flush_l2()
            queue.keep_busy(self._busy_ms(work))
            begin = queue.mark()
            started = perf_counter()
            result = work.call(argument)
            self._enqueue_ms[work] = (perf_counter() - started) * 1e3
            end = queue.mark()
            exposed = begin.query()
            queue.synchronize()
        del result  # kept until here: freeing it is not part of the call
        return Sample({"device": begin.elapsed_time(end)}, exposed)

    def _busy_ms(self, work: Work) -> float:
        wanted = BUSY_OVER_ENQUEUE * self._enqueue_ms.get(work, 0.0) + LEAST_BUSY_MS
        return min(wanted, MOST_BUSY_MS)


def host_sampler(device: torch.device) -> Sampler:
    """Return a sampler by the host clock, with a synchronize on both sides, and by CUDA events on a GPU."""

    def sample(work: Work) -> Sample:
        timings, kept = Timings(), []  # what the call returns is kept: freeing it is not part of the call
        with work.within():
            argument = work.prepare()
            time_once(lambda: kept.append(work.call(argument)), device, timings)
        return Sample({clock: times_ms[0] for clock, times_ms in timings.by_clock().items()})

    return sample


def latency_sampler(device: torch.device) -> Sampler:
    """Return a sampler of a lone call by the host clock: until it returns, and until its work is done.

    Untimed lone calls of the same work run before it for SETTLING_MS. Otherwise its time would depend on how much of
    its code the previous calls in the turn left in the CPU's caches, which favours calls that share code.
    """

    def lone_call(work: Work) -> Sample:
        argument = work.prepare()
        synchronize(device)
        started = perf_counter()
        result = work.call(argument)
        returned = perf_counter()
        synchronize(device)
        done = perf_counter()
        del result
        return Sample({"call": (done - started) * 1e3, "enqueue": (returned - started) * 1e3})

    def sample(work: Work) -> Sample:
        with work.within():
            begun = perf_counter()
            while (perf_counter() - begun) * 1e3 < SETTLING_MS:
                lone_call(work)
            return lone_call(work)

    return sample


def kernel_sampler(device: torch.device) -> Sampler:
    """Return the best sampler of kernels for a device: device time on a GPU, the host clock on a CPU."""
    return KernelSampler(CudaQueue(device)) if device.type == "cuda" else host_sampler(device)
