"""Find the steps in a series of times: where it changes its level for longer than chance explains.

By a permutation test of the largest split. Values are the logs of the medians of processes: repeats count one by one,
pooled over runs. Splits lie between runs; the largest difference of means on either side, weighted by √(n₁·n₂/n),
stands against that of PERMUTATIONS random orders of the values. Of histories whose runs do not differ at most
ALARM_RATE have a step. Beside a step others are sought on either side of it.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

ALARM_RATE, PERMUTATIONS, SEED = 0.01, 1999, 0
# A smaller step is none.
LEAST_STEP = 1.01


@dataclass(frozen=True)
class Step:
    """A step: the number of runs before it, the time from it to the next over that before, how likely chance is."""

    place: int
    ratio: float
    p_value: float


def steps(medians_ms: Sequence[Sequence[float]]) -> list[Step]:
    """Return the steps in the times of runs in order, each given as the medians of its repeats."""
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
    behind = len(values) - borders

    def differences(orders: np.ndarray) -> np.ndarray:
        sums = orders.cumsum(axis=-1)
        before, every = sums[..., borders - 1], sums[..., -1:]
        return np.abs((every - before) / behind - before / borders)

    weights = np.sqrt(borders * behind / len(values))
    seen = differences(values)
    split = int(np.argmax(seen * weights))
    random = np.random.default_rng(SEED).permuted(np.tile(values, (PERMUTATIONS, 1)), axis=1)
    as_large = (differences(random) * weights).max(axis=1) >= seen[split] * weights[split] * (1 - 1e-9)
    p_value = (1 + int(as_large.sum())) / (1 + PERMUTATIONS)
    if p_value <= ALARM_RATE and seen[split] >= math.log(LEAST_STEP):
        yield from _splits(logs[: split + 1], first)
        yield first + split + 1, p_value
        yield from _splits(logs[split + 1 :], first + split + 1)
