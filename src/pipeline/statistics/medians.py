"""Compare medians of repeated processes: the error of a median, and the interval of a ratio of two.

The interval combines two spreads. Within a process it comes from a block bootstrap, since a sample is like those just
before it. Between processes, which differ by more than their samples show, it is the spread of repeats, pooled over
rows of the same kind: two processes alone say too little about it.
"""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

CONFIDENCE = 0.95
# Fewer samples of a process say nothing of its spread.
LEAST_SAMPLES = 5
RESAMPLES, SEED = 500, 0
Repeats = Sequence[Sequence[float]]


class RepeatSpread(NamedTuple):
    """How far repeats lie apart: the standard deviation of the logs of their medians, and its degrees of freedom."""

    log_std: float
    degrees: float


def pooled_spread(medians: Iterable[Sequence[float]]) -> RepeatSpread:
    """Return how far repeats lie apart, pooled over times of any size, each given as the medians of its repeats.

    Without two repeats of any there are no degrees of freedom, and the deviation is NaN.
    """
    logs = [np.log(each) for each in medians]
    degrees = sum(len(each) - 1 for each in logs)
    squares = sum(len(each) * float(np.var(each)) for each in logs)
    return RepeatSpread(math.sqrt(squares / degrees) if degrees else math.nan, degrees)


def process_medians(repeats: Repeats) -> list[float]:
    """Return the median of each repeat."""
    return [float(np.median(samples)) for samples in repeats]


def log_median(repeats: Repeats) -> float:
    """Return the log of the median of the repeats' medians, which is what tables have."""
    return float(np.log(np.median(process_medians(repeats))))


def log_median_error(samples: Sequence[float]) -> tuple[float, float]:
    """Return the standard error of the log of a median, and its degrees of freedom, for samples that depend on others.

    Circular block bootstrap (Politis and Romano 1992), with blocks as long as is best for a lag-1 autocorrelation of
    0.5: (√6 · 0.5 / (1 − 0.5²))^⅔ · n^⅓ samples (Carlstein 1986). Seeded, so that a verdict never changes.
    """
    values, count = np.asarray(samples, dtype=float), len(samples)
    block = min(round((math.sqrt(6) * 0.5 / 0.75) ** (2 / 3) * count ** (1 / 3)), count // 2)
    blocks = -(-count // block)
    starts = np.random.default_rng(SEED).integers(count, size=(RESAMPLES, blocks, 1))
    chosen = ((starts + np.arange(block)) % count).reshape(RESAMPLES, -1)[:, :count]
    log_medians = np.log(np.median(values[chosen], axis=1))
    # As many independent parts as blocks fit, of which the mean takes one.
    return float(log_medians.std() * math.sqrt(count / (count - block))), count / block - 1


def half_interval(sides: Sequence[Repeats], spread: RepeatSpread) -> float:
    """Return half the interval of the log ratio, with the degrees of freedom of a sum of variances (Welch 1947)."""
    counts = sum(_over_mean(side) / len(side) for side in sides)
    variances = [(spread.log_std**2 * counts, float(spread.degrees))]
    for side in sides:
        share = _over_mean(side) / len(side) ** 2
        variances += [(error**2 * share, degrees) for error, degrees in map(log_median_error, side)]
    total = sum(variance for variance, _ in variances)
    if total == 0:
        return 0.0
    from scipy.special import stdtrit  # its import takes a quarter of a second, and without repeats nothing asks for it

    degrees = total**2 / sum(variance**2 / degrees for variance, degrees in variances)
    return float(stdtrit(degrees, (1 + CONFIDENCE) / 2)) * math.sqrt(total)


def _over_mean(repeats: Repeats) -> float:
    """Return how many times a mean's variance the median's is at most; of two they are the same."""
    return math.pi / 2 if len(repeats) > 2 else 1.0
