"""Summarise samples by order statistics, which a few slow samples do not move."""

import statistics
from collections.abc import Sequence
from operator import mul

# Standard error of a median over the interquartile range, for normal samples and large n:
# sqrt(pi/2) * sigma / sqrt(n), with sigma = IQR / 1.349 (Kendall & Stuart, Advanced Theory of Statistics).
MEDIAN_ERROR_PER_IQR = 1.2533 / 1.349
# The fewest samples from which to estimate autocorrelation, and the most that is assumed.
TELLING_SAMPLES, MOST_ALIKE = 10, 0.8


def quartiles(samples: Sequence[float]) -> tuple[float, float, float]:
    """Return q1, median, q3, interpolated linearly between order statistics."""
    if len(samples) == 1:
        return samples[0], samples[0], samples[0]
    q1, median, q3 = statistics.quantiles(samples, n=4, method="inclusive")
    return q1, median, q3


def rel_error(samples: Sequence[float]) -> float:
    """Return the standard error of the median over the median; infinite for fewer than two samples.

    The samples are in the order taken: the more each is like the one before, the less they tell together. A median only
    depends on which samples lie above it, so r is the lag-1 autocorrelation of that, and the error grows by
    √((1 + r) / (1 − r)). Quartiles are unbiased for few samples (Hyndman and Fan 1996, definition 8).
    """
    if len(samples) < 2:
        return float("inf")
    ordered = sorted(samples)
    q1, median, q3 = (_median_unbiased(ordered, share) for share in (0.25, 0.5, 0.75))
    above = [int(sample > median) - int(sample < median) for sample in samples]
    r = 0.0
    if len(samples) >= TELLING_SAMPLES and any(above):
        r = min(max(sum(map(mul, above[1:], above)) / sum(map(abs, above)), 0.0), MOST_ALIKE)
    independent = len(samples) * (1 - r) / (1 + r)
    return MEDIAN_ERROR_PER_IQR * (q3 - q1) / independent**0.5 / median


def _median_unbiased(ordered: Sequence[float], share: float) -> float:
    """Return a quantile by definition 8 of Hyndman and Fan; no numpy: its import takes longer than a whole table."""
    place = min(max((len(ordered) + 1 / 3) * share + 1 / 3, 1.0), float(len(ordered)))
    below = int(place)
    if below == len(ordered):
        return ordered[-1]
    return ordered[below - 1] + (place - below) * (ordered[below] - ordered[below - 1])
