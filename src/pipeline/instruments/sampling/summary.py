"""Summaries of samples: order statistics first, for a few slow samples must not move the figure."""

import statistics
from collections.abc import Sequence

import numpy as np

# Standard error of a median over the interquartile range, for normal samples and n large:
# sqrt(pi/2) * sigma / sqrt(n), with sigma = IQR / 1.349 (Kendall & Stuart, Advanced Theory of Statistics).
MEDIAN_ERROR_PER_IQR = 1.2533 / 1.349
# Fewer samples do not tell how much each is like the one before; and how alike they are at most taken to be.
TELLING_SAMPLES, MOST_ALIKE = 10, 0.8


def quartiles(samples: Sequence[float]) -> tuple[float, float, float]:
    """Return q1, median, q3, interpolated linearly between order statistics."""
    if len(samples) == 1:
        return samples[0], samples[0], samples[0]
    q1, median, q3 = statistics.quantiles(samples, n=4, method="inclusive")
    return q1, median, q3


def rel_error(samples: Sequence[float]) -> float:
    """Return the standard error of the median over the median; infinite for fewer than two samples.

    The samples are in the order taken: the more each is like the one before, the less they tell together. A median
    depends on which samples lie above it, so that the autocorrelation r of that counts: the error grows by
    √((1 + r) / (1 − r)). Quartiles are unbiased for few samples (Hyndman and Fan 1996, definition 8).
    """
    if len(samples) < 2:
        return float("inf")
    values = np.asarray(samples, dtype=float)
    q1, median, q3 = np.quantile(values, [0.25, 0.5, 0.75], method="median_unbiased")
    above = np.sign(values - median)
    r = 0.0
    if len(samples) >= TELLING_SAMPLES and above.any():
        r = min(max(float(above[1:] @ above[:-1] / (above @ above)), 0.0), MOST_ALIKE)
    independent = len(samples) * (1 - r) / (1 + r)
    return float(MEDIAN_ERROR_PER_IQR * (q3 - q1) / independent**0.5 / median)
