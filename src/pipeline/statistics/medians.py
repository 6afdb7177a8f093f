"""Compare medians of repeated processes: the error of a median, and the interval of a ratio of two.

The interval combines two spreads. Within a process it comes from a block bootstrap, since successive samples are
correlated. Between processes, which differ by more than their samples show, it is the spread of repeats, pooled over
rows of the same kind: two processes alone say too little about it.
"""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

CONFIDENCE = 0.95
# Fewer samples of a process say nothing about its spread.
LEAST_SAMPLES = 5
RESAMPLES, SEED = 500, 0
Repeats = Sequence[Sequence[float]]


class RepeatSpread(NamedTuple):
    """How far repeats lie apart: the standard deviation of the logs of their medians, and its degrees of freedom."""

    log_std: float
    degrees: float


def pooled_spread(medians: Iterable[Sequence[float]]) -> RepeatSpread:
    """Return the spread of repeats, pooled over times of any size, each given as the medians of its repeats.

    If none has two repeats, there are no degrees of freedom and the deviation is NaN.
    """
    logs = [np.log(each) for each in medians]
    degrees = sum(len(each) - 1 for each in logs)
    squares = sum(len(each) * float(np.var(each)) for each in logs)
    return RepeatSpread(math.sqrt(squares / degrees) if degrees else math.nan, degrees)


def process_medians(repeats: Repeats) -> list[float]:
    """Return the median of each repeat."""
    return [float(np.median(samples)) for samples in repeats]


def log_median(repeats: Repeats) -> float:
    """Return the log of the median of the repeats' medians, which is the value in tables."""
    return float(np.log(np.median(process_medians(repeats))))


def log_median_error(samples: Sequence[float]) -> tuple[float, float]:
    """Return the standard error of the log of a median, and its degrees of freedom, for correlated samples.

    Circular block bootstrap (Politis and Romano 1992), with the best block length for a lag-1 autocorrelation of 0.5:
    (√6 · 0.5 / (1 − 0.5²))^⅔ · n^⅓ samples (Carlstein 1986). Seeded, so that a verdict never changes.
    """
    values, count = np.asarray(samples, dtype=float), len(samples)
    block = min(round((math.sqrt(6) * 0.5 / 0.75) ** (2 / 3) * count ** (1 / 3)), count // 2)
    blocks = -(-count // block)
    starts = np.random.default_rng(SEED).integers(count, size=(RESAMPLES, blocks, 1))
    chosen = ((starts + np.arange(block)) % count).reshape(RESAMPLES, -1)[:, :count]
    log_medians = np.log(np.median(values[chosen], axis=1))
    # There are as many independent parts as blocks fit; the mean takes one degree of freedom.
    return float(log_medians.std() * math.sqrt(count / (count - block))), count / block - 1


def half_interval(sides: Sequence[Repeats], spread: RepeatSpread) -> float:
    """Return half the width of the log ratio's interval, with degrees of freedom by Welch (1947)."""
    counts = sum(_median_to_mean_variance(side) / len(side) for side in sides)
    variances = [(spread.log_std**2 * counts, float(spread.degrees))]
    for side in sides:
        share = _median_to_mean_variance(side) / len(side) ** 2
        variances += [(error**2 * share, degrees) for error, degrees in map(log_median_error, side)]
    total = sum(variance for variance, _ in variances)
    if total == 0:
        return 0.0
    from scipy.special import stdtrit  # takes a quarter of a second to import, and is not needed without repeats

    degrees = total**2 / sum(variance**2 / degrees for variance, degrees in variances)
    return float(stdtrit(degrees, (1 + CONFIDENCE) / 2)) * math.sqrt(total)


def _median_to_mean_variance(repeats: Repeats) -> float:
    """Return the largest ratio of a median's variance to a mean's; for two values they are the same."""
    return math.pi / 2 if len(repeats) > 2 else 1.0
