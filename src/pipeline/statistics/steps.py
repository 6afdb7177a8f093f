"""Find the steps in a series of times: changes of level that last longer than chance explains.

Uses a permutation test of the largest split. Values are the logs of the medians of processes; each repeat is a value of
its own, pooled over runs. Splits lie between runs. The largest difference of means across a split, weighted by
√(n₁·n₂/n), is compared with that of PERMUTATIONS random orders of the values. Of histories whose runs do not differ, at
most ALARM_RATE have a step. Once a step is found, both sides of it are searched too.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

ALARM_RATE, PERMUTATIONS, SEED = 0.01, 1999, 0
# A smaller ratio does not count as a step.
LEAST_STEP = 1.01


@dataclass(frozen=True)
class Step:
    """A step: the number of runs before it, the times up to the next step over those before it, and the p-value."""

    place: int
    ratio: float
    p_value: float


def steps(medians_ms: Sequence[Sequence[float]]) -> list[Step]:
    """Return the steps in the times of runs; each run, in order, is given as the medians of its repeats."""
    logs = [np.log(each) for each in medians_ms]
    found = dict(_splits(logs))
    levels = [float(np.concatenate(logs[first:end]).mean()) for first, end in pairwise([0, *found, len(logs)])]
    ratios = [math.exp(after - before) for before, after in pairwise(levels)]
    return [Step(place, ratio, p_value) for (place, p_value), ratio in zip(found.items(), ratios, strict=True)]


def _splits(logs: Sequence[np.ndarray], first: int = 0) -> Iterator[tuple[int, float]]:
    """Yield the places of steps and their p-values; first: the place of the first of these runs."""
    if len(logs) < 2:
        return
    values, borders = np.concatenate(logs), np.cumsum([len(each) for each in logs])[:-1]
    count_after = len(values) - borders

    def differences(orders: np.ndarray) -> np.ndarray:
        sums = orders.cumsum(axis=-1)
        before, total = sums[..., borders - 1], sums[..., -1:]
        return np.abs((total - before) / count_after - before / borders)

    weights = np.sqrt(borders * count_after / len(values))
    observed = differences(values)
    split = int(np.argmax(observed * weights))
    random = np.random.default_rng(SEED).permuted(np.tile(values, (PERMUTATIONS, 1)), axis=1)
    as_large = (differences(random) * weights).max(axis=1) >= observed[split] * weights[split] * (1 - 1e-9)
    p_value = (1 + int(as_large.sum())) / (1 + PERMUTATIONS)
    if p_value <= ALARM_RATE and observed[split] >= math.log(LEAST_STEP):
        yield from _splits(logs[: split + 1], first)
        yield first + split + 1, p_value
        yield from _splits(logs[split + 1 :], first + split + 1)
