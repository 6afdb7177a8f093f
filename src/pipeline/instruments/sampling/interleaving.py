"""Time calls in turn, round by round, so that a drift of the machine affects all of them equally."""

from collections.abc import Callable, Collection, Hashable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Generic, TypeVar

from pipeline.instruments.machine.gpu_state import gpu_state
from pipeline.instruments.machine.power import Power, PowerWatch
from pipeline.instruments.memory.out_of_memory import attempt
from pipeline.instruments.sampling.step_timing import StopRule, Watched

# Identifies a call.
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Work:
    """A call to time, a function that prepares its argument, untimed, before each call, and a context around both."""

    call: Callable[[Any], object]
    prepare: Callable[[], Any] = lambda: None
    within: Callable[[], AbstractContextManager] = nullcontext


@dataclass(frozen=True)
class Sample:
    """One call's milliseconds by each clock that was read, and whether they may include launch gaps."""

    times_ms: dict[str, float]
    exposed: bool = False


Sampler = Callable[[Work], Sample]


@dataclass
class Taken:
    """The samples of one call, by clock; how many of them were exposed; why there are no more, if memory ran out."""

    times_ms: dict[str, list[float]] = field(default_factory=dict)
    exposed: int = 0
    elapsed_s: float = 0.0
    out_of_memory: str | None = None

    def add(self, sample: Sample, elapsed_s: float) -> None:
        """Add a sample and the seconds it took, preparation included."""
        for clock, time_ms in sample.times_ms.items():
            self.times_ms.setdefault(clock, []).append(time_ms)
        self.exposed += sample.exposed
        self.elapsed_s += elapsed_s


@dataclass(frozen=True)
class Interleaving(Watched, Generic[Key]):
    """The result of interleaved sampling, the state of the GPU before and after it, and its power meanwhile."""

    taken: dict[Key, Taken]
    state_before: list[dict]
    state_after: list[dict]
    power: Power = field(default_factory=Power)


def interleave(
    works: Mapping[Key, Work],
    sampler: Sampler,
    rules: Mapping[Key, StopRule],
    warmup: int,
    warm: Collection[Key] = (),
) -> Interleaving[Key]:
    """Sample the calls in turn, round after round, until each one's own rule ends its sampling.

    The first `warmup` rounds are not counted; calls in `warm` skip them. A call leaves the rounds when its rule ends it
    or when it runs out of memory; what it held is then freed, and the others go on. The rule looks at the sampler's
    first clock; its budget is per call.
    """
    taken = {name: Taken() for name in works}
    for _ in range(warmup):
        for name in works:
            if name not in warm and taken[name].out_of_memory is None:
                _, taken[name].out_of_memory = attempt(sampler, works[name])
    rotation = [name for name in works if taken[name].out_of_memory is None]
    state_before, watch, rounds = gpu_state(), PowerWatch(), 0
    while rotation:
        rotation = [name for name in rotation if _goes_on(works[name], sampler, taken[name], rules[name])]
        watch.poll()
        rounds += 1
    return Interleaving(taken, state_before, gpu_state(), watch.over(max(1, rounds)))


def _goes_on(work: Work, sampler: Sampler, taken: Taken, rule: StopRule) -> bool:
    """Take one sample; return whether another is wanted."""
    started = perf_counter()
    sample, taken.out_of_memory = attempt(sampler, work)
    if sample is None:
        return False
    taken.add(sample, perf_counter() - started)
    return not rule.ends([next(iter(taken.times_ms.values()))], taken.elapsed_s)
