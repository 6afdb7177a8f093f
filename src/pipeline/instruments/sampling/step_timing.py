"""The instrument `timing`: times the phases of a repeated step by the host clock and by CUDA events."""

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from time import perf_counter

import torch

from pipeline.instruments.machine import gpu_state
from pipeline.instruments.machine.power import Power, PowerWatch
from pipeline.instruments.sampling.summary import rel_error

Phases = Mapping[str, Callable[[], object]]

# Bound here, like perf_counter, before any user code is imported, which might replace them.
_CudaEvent, _cuda_synchronize = torch.cuda.Event, torch.cuda.synchronize


@dataclass(frozen=True)
class StopRule:
    """When to stop sampling: enough samples and a median known well enough, or the budget spent.

    min_samples are always taken, and sampling lasts at least least_s seconds or max_samples. After that it ends as soon
    as every phase's median is known to within `rel_error` (standard error over median), or after budget_s seconds.
    """

    min_samples: int
    max_samples: int
    rel_error: float
    budget_s: float
    least_s: float = 0.0

    def ends(self, samples_ms: list[list[float]], elapsed_s: float) -> bool:
        """Tell whether sampling ends, given the samples of each phase and the seconds it has taken."""
        taken = min(map(len, samples_ms))
        if taken >= self.max_samples:
            return True
        if taken < self.min_samples or elapsed_s < self.least_s:
            return False
        return elapsed_s >= self.budget_s or all(rel_error(samples) <= self.rel_error for samples in samples_ms)


@dataclass
class Timings:
    """The samples of one phase in ms, by the host clock and, on a GPU, by CUDA events."""

    host_ms: list[float] = field(default_factory=list)
    cuda_events_ms: list[float] = field(default_factory=list)

    def by_clock(self) -> dict[str, list[float]]:
        """Return the samples of each clock that was read."""
        clocks = {"host": self.host_ms, "cuda_events": self.cuda_events_ms}
        return {clock: samples for clock, samples in clocks.items() if samples}


class Watched:
    """Base of sampling results that include the GPU's state afterwards and its power meanwhile."""

    state_after: list[dict]
    power: Power

    def slowdowns(self) -> list[str]:
        """Return the reasons, if any, why the hardware slowed its clock during or right after sampling."""
        return gpu_state.slowdowns_among({*self.power.slowdowns, *gpu_state.slowdown_reasons(self.state_after)})


@dataclass(frozen=True)
class Sampling(Watched):
    """The samples of a set of phases, the state of the GPU just before and just after, and its power meanwhile.

    In `power`, a step is one round of all phases.
    """

    timings: dict[str, Timings]
    state_before: list[dict]
    state_after: list[dict]
    power: Power = field(default_factory=Power)


def time_phases(phases: Phases, device: torch.device, warmup: int, rule: StopRule) -> Sampling:
    """Repeat phases in turn and time each, with a synchronize on both sides.

    Every round runs all phases in order. The first `warmup` rounds are not counted; with 0 the cold first round is a
    sample like any other.
    """
    warm_up(phases, device, warmup)
    state_before = gpu_state.gpu_state()
    timings = {name: Timings() for name in phases}
    watch, started = PowerWatch(), perf_counter()
    while True:
        for name, phase in phases.items():
            time_once(phase, device, timings[name])
        watch.poll()
        samples_ms = [timing.host_ms for timing in timings.values()]
        if rule.ends(samples_ms, perf_counter() - started):
            power = watch.over(len(samples_ms[0]))
            return Sampling(timings, state_before, gpu_state.gpu_state(), power)


def warm_up(phases: Phases, device: torch.device, rounds: int) -> None:
    """Run phases in turn, untimed, and wait for the device."""
    for _ in range(rounds):
        for phase in phases.values():
            phase()
    synchronize(device)


def time_call_ms(call: Callable[[], object], device: torch.device) -> float:
    """Return the milliseconds of one call by the host clock, with a synchronize on both sides."""
    timings = Timings()
    time_once(call, device, timings)
    return timings.host_ms[0]


def time_once(phase: Callable[[], object], device: torch.device, timings: Timings) -> None:
    """Run a phase with a synchronize on both sides and append what each clock says."""
    host_ms, _, events_ms = time_in_a_row([phase], device)
    timings.host_ms.append(host_ms)
    timings.cuda_events_ms += events_ms


def time_in_a_row(
    calls: Iterable[Callable[[], object]], device: torch.device
) -> tuple[float, list[float], list[float]]:
    """Run calls back to back, with a synchronize only before the first and after the last.

    Returns milliseconds: of all by the host clock; of each until it returned, by the host clock; and of each by CUDA
    events on the current stream, none on a CPU.
    """
    on_gpu = device.type == "cuda"
    synchronize(device)
    with collections_off():
        events = [recorded_event()] if on_gpu else []
        moments_s = [perf_counter()]
        for call in calls:
            call()
            events += [recorded_event()] if on_gpu else []
            moments_s.append(perf_counter())
        synchronize(device)
        ended_s = perf_counter()
    calls_ms = [(end - begin) * 1e3 for begin, end in pairwise(moments_s)]
    return (ended_s - moments_s[0]) * 1e3, calls_ms, [begin.elapsed_time(end) for begin, end in pairwise(events)]


def recorded_event() -> torch.cuda.Event:
    """Record an event in the current stream."""
    event = _CudaEvent(enable_timing=True)
    event.record()
    return event


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished all queued work; on a CPU there is nothing to wait for."""
    if device.type == "cuda":
        _cuda_synchronize(device)


@contextmanager
def collections_off() -> Iterator[None]:
    """Keep Python's garbage collector off inside this context; overdue collections run afterwards.

    A collection can take tenths of a second, at an unpredictable moment, and is not part of what is timed.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
