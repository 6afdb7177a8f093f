"""Decide which of two is faster, from the samples of their repeats.

The ratio of two times is known to an interval that combines two spreads. Within a process it comes from a block
bootstrap, since a sample is like those just before it. Between processes, which differ by more than their samples show,
it is the spread of repeats, pooled over figures of the same kind: two processes alone say too little about it.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

FASTER, SLOWER, SAME, UNDECIDED = "faster", "slower", "same", "undecided"
CONFIDENCE = 0.95
LEAST_DIFFERENCE, LARGEST_SAMENESS = 1.01, 1.02
# Fewer samples of a process say nothing of its spread.
LEAST_SAMPLES = 5
RESAMPLES, SEED = 500, 0


@dataclass(frozen=True)
class RepeatSpread:
    """How far repeats lie apart: the standard deviation of the logs of their medians, and its degrees of freedom."""

    log_std: float
    degrees: int


@dataclass(frozen=True)
class Verdict:
    """The time of b over that of a, and whether b is faster; without repeats the ratio alone, all else None."""

    ratio: float
    low: float | None = None
    high: float | None = None
    word: str | None = None


def pooled_repeat_spread(medians: Iterable[Sequence[float]]) -> RepeatSpread | None:
    """Pool the spread of repeats, given for each figure the medians of its repeats; None where no figure has two."""
    logs = [np.log(each) for each in medians if len(each) > 1]
    degrees = sum(len(each) - 1 for each in logs)
    if degrees == 0:
        return None
    squares = sum(float(((each - each.mean()) ** 2).sum()) for each in logs)
    return RepeatSpread(math.sqrt(squares / degrees), degrees)


def compare_samples(a: Sequence[Sequence[float]], b: Sequence[Sequence[float]], spread: RepeatSpread | None) -> Verdict:
    """Compare the times of b with those of a, each given as the samples of its repeats in the order taken.

    spread: that of repeats of such figures; without it, or with fewer than LEAST_SAMPLES a repeat, only the ratio is
    told. b is faster or slower where the interval excludes 1 and the ratio is off by LEAST_DIFFERENCE or more; the same
    where the interval lies within LARGEST_SAMENESS.
    """
    log_ratio = _log_median(b) - _log_median(a)
    if spread is None or min(map(len, [*a, *b])) < LEAST_SAMPLES:
        return Verdict(math.exp(log_ratio))
    margin = _margin([a, b], spread)
    low, high = math.exp(log_ratio - margin), math.exp(log_ratio + margin)
    return Verdict(math.exp(log_ratio), low, high, _word(math.exp(log_ratio), low, high))


def interval_of_median(repeats: Sequence[Sequence[float]], spread: RepeatSpread) -> tuple[float, float] | None:
    """Return the ends of the interval of the median of repeats; None with fewer than LEAST_SAMPLES in one."""
    if min(map(len, repeats)) < LEAST_SAMPLES:
        return None
    middle, margin = _log_median(repeats), _margin([repeats], spread)
    return math.exp(middle - margin), math.exp(middle + margin)


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


def _log_median(repeats: Sequence[Sequence[float]]) -> float:
    return float(np.mean([math.log(np.median(samples)) for samples in repeats]))


def _margin(sides: Sequence[Sequence[Sequence[float]]], spread: RepeatSpread) -> float:
    """Return half the interval of the log ratio, with the degrees of freedom of a sum of variances (Welch 1947)."""
    variances = [(spread.log_std**2 * sum(1 / len(side) for side in sides), float(spread.degrees))]
    for side in sides:
        errors = [log_median_error(samples) for samples in side]
        variances += [((error / len(side)) ** 2, degrees) for error, degrees in errors]
    total = sum(variance for variance, _ in variances)
    if total == 0:
        return 0.0
    from scipy.special import stdtrit  # its import takes a quarter of a second, and without repeats nothing asks for it

    degrees = total**2 / sum(variance**2 / degrees for variance, degrees in variances)
    return float(stdtrit(degrees, (1 + CONFIDENCE) / 2)) * math.sqrt(total)


def _word(ratio: float, low: float, high: float) -> str:
    if low > 1 and ratio >= LEAST_DIFFERENCE:
        return SLOWER
    if high < 1 and ratio <= 1 / LEAST_DIFFERENCE:
        return FASTER
    return SAME if low >= 1 / LARGEST_SAMENESS and high <= LARGEST_SAMENESS else UNDECIDED
