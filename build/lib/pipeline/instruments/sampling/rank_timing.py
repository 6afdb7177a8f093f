"""The instrument `rank_timing`: a step that several ranks make together, timed whole and by phase, undivided.

Between the phases nothing waits: a stop would let communication that runs beside backward finish unseen. Phases are
told apart by CUDA events on the stream that computes, on a CPU by the host clock. A step is over when the last rank's
is, so that each sample is the maximum over the ranks.
"""

from itertools import pairwise
from time import perf_counter
from typing import TypeVar

import torch
import torch.distributed as dist

from pipeline.instruments.machine import gpu_state
from pipeline.instruments.machine.power import Power, PowerWatch, power_of_ranks
from pipeline.instruments.sampling.step_timing import CudaEvent, Phases, Sampling, Timings, collections_off, synchronize

STEP = "train_step"

Key = TypeVar("Key")


def time_steps_over_ranks(phases: Phases, device: torch.device, warmup: int, steps: int) -> Sampling:
    """Repeat the phases as one step on every rank; give each step's longest times over the ranks.

    The whole step, under the name `train_step`, is timed by the host clock with a synchronize on both sides and a
    barrier before; on a GPU by CUDA events too. Every rank of the default process group calls it alike, and all get
    the same samples.
    """
    for _ in range(warmup):
        for phase in phases.values():
            phase()
    synchronize(device)
    state_before = gpu_state.gpu_state()
    timings = {name: Timings() for name in (*phases, STEP)}
    watch = PowerWatch(device.index)
    for _ in range(steps):
        dist.barrier()
        for (name, clock), sample_ms in max_over_ranks(_time_step(phases, device), device).items():
            samples = timings[name].host_ms if clock == "host" else timings[name].cuda_events_ms
            samples.append(sample_ms)
        watch.poll()
    return Sampling(timings, state_before, gpu_state.gpu_state(), _power_over_ranks(watch.over(steps)))


def _time_step(phases: Phases, device: torch.device) -> dict[tuple[str, str], float]:
    """Time one step on this rank: the milliseconds by phase and clock."""
    clock = _CudaEvents() if device.type == "cuda" else _HostClock()
    synchronize(device)
    with collections_off():
        started = perf_counter()
        clock.mark()
        for phase in phases.values():
            phase()
            clock.mark()
        synchronize(device)
        host_ms = (perf_counter() - started) * 1e3
    phases_ms = clock.between_marks_ms()
    times_ms = {(name, clock.name): ms for name, ms in zip(phases, phases_ms, strict=True)}
    if clock.name != "host":
        times_ms[STEP, clock.name] = sum(phases_ms)
    return times_ms | {(STEP, "host"): host_ms}


def _power_over_ranks(power: Power) -> Power:
    ranks: list[Power] = [power] * dist.get_world_size()
    dist.all_gather_object(ranks, power)
    return power_of_ranks(ranks)


def max_over_ranks(values: dict[Key, float], device: torch.device) -> dict[Key, float]:
    """Replace each value by its maximum over the ranks, which hold the same keys in the same order."""
    largest = torch.tensor(list(values.values()), dtype=torch.float64, device=device)
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    return dict(zip(values, largest.tolist(), strict=True))


class _HostClock:
    name = "host"

    def __init__(self) -> None:
        self.moments_s: list[float] = []

    def mark(self) -> None:
        self.moments_s.append(perf_counter())

    def between_marks_ms(self) -> list[float]:
        return [(end - begin) * 1e3 for begin, end in pairwise(self.moments_s)]


class _CudaEvents:
    name = "cuda_events"

    def __init__(self) -> None:
        self.events: list[torch.cuda.Event] = []

    def mark(self) -> None:
        self.events.append(CudaEvent(enable_timing=True))
        self.events[-1].record()

    def between_marks_ms(self) -> list[float]:
        return [begin.elapsed_time(end) for begin, end in pairwise(self.events)]
