"""Decide which of several similar GPUs or links is slow, at a known rate of false alarms.

The samples of each are cut into BLOCKS stretches of time. In each stretch, the GPU's median is compared with the median
of the others. If a GPU is really at most MARGIN slower than they are, it lies further below in a stretch with a
probability of at most 1/2, whatever the noise looks like: this is a sign test. Bonferroni's correction covers all tests
of a run, so at most a share of FALSE_ALARMS of a sound machine's runs name anything, if stretches are independent.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import comb

BLOCKS = 20
MARGIN = 0.03
FALSE_ALARMS = 0.01


@dataclass(frozen=True)
class Standing:
    """How one of several compares with the median of the others.

    below_pct: by how much its median rate is lower, negative if it is higher. chance: the probability of this many
    stretches below the margin if it were no slower than the margin.
    """

    below_pct: float
    chance: float

    def is_slow(self, tests: int) -> bool:
        """Tell whether it is slower than the margin; tests: how many tests the run makes."""
        return self.below_pct > 100 * MARGIN and self.chance < FALSE_ALARMS / tests


def standing(name: str, samples_ms: Mapping[str, Sequence[float]]) -> Standing | None:
    """Compare one of several with the others by their samples, in the order taken; None if it is the only one."""
    others = [samples for other, samples in samples_ms.items() if other != name]
    if not others:
        return None
    own = samples_ms[name]
    ratios = [
        statistics.median(theirs) / mine
        for mine, *theirs in zip(_block_medians(own), *map(_block_medians, others), strict=False)
    ]
    below = sum(ratio < 1 - MARGIN for ratio in ratios)
    rate = statistics.median(map(statistics.median, others)) / statistics.median(own)
    chance = sum(comb(len(ratios), count) for count in range(below, len(ratios) + 1)) / 2 ** len(ratios)
    return Standing(100 * (1 - rate), chance)


def _block_medians(samples: Sequence[float]) -> list[float]:
    """Return the median of each of BLOCKS stretches, or of each sample where there are fewer."""
    blocks = min(BLOCKS, len(samples))
    edges = [len(samples) * edge // blocks for edge in range(blocks + 1)]
    return [statistics.median(samples[start:end]) for start, end in pairwise(edges)]
