"""Summaries of samples: order statistics first, for a few slow samples must not move the figure."""

import statistics
from collections.abc import Sequence

# Standard error of a median over the interquartile range, for normal samples and n large:
# sqrt(pi/2) * sigma / sqrt(n), with sigma = IQR / 1.349 (Kendall & Stuart, Advanced Theory of Statistics).
MEDIAN_ERROR_PER_IQR = 1.2533 / 1.349


def quartiles(samples: Sequence[float]) -> tuple[float, float, float]:
    """Return q1, median, q3, interpolated linearly between order statistics."""
    if len(samples) == 1:
        return samples[0], samples[0], samples[0]
    q1, median, q3 = statistics.quantiles(samples, n=4, method="inclusive")
    return q1, median, q3


def rel_error(samples: Sequence[float]) -> float:
    """Return the standard error of the median over the median; infinite for fewer than two samples."""
    if len(samples) < 2:
        return float("inf")
    q1, median, q3 = quartiles(samples)
    return MEDIAN_ERROR_PER_IQR * (q3 - q1) / len(samples) ** 0.5 / median


def summarise(samples_ms: Sequence[float]) -> dict[str, float | int | None]:
    """Return n, median, quartiles, mean, standard deviation, extremes in ms, and the median's relative error.

    Standard deviation and relative error of a single sample are None: unknown, not 0.
    """
    q1, median, q3 = quartiles(samples_ms)
    several = len(samples_ms) > 1
    return {
        "n": len(samples_ms),
        "median_ms": median,
        "q1_ms": q1,
        "q3_ms": q3,
        "mean_ms": statistics.fmean(samples_ms),
        "std_ms": statistics.stdev(samples_ms) if several else None,
        "min_ms": min(samples_ms),
        "max_ms": max(samples_ms),
        "rel_error": rel_error(samples_ms) if several else None,
    }
