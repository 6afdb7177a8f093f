"""What tables derive from raw samples: their summary, and whether their median can be trusted."""

import statistics
from collections.abc import Sequence
from typing import Any

from pipeline.instruments.sampling.summary import quartiles, rel_error

# An error of a phase below this share of the step's own limit is no reason for doubt: a wait of microseconds is noise.
NEGLIGIBLE_SHARE = 0.2


def summarise(samples_ms: Sequence[float]) -> dict[str, Any]:
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


def why_unstable(
    samples_ms: Sequence[float],
    slowdowns: Sequence[str],
    unstable_rel_error: float,
    turns: int = 1,
    step_ms: float = 0.0,
) -> str | None:
    """Say why the median of these samples is not known well enough; None where it is. This is the one rule for it.

    slowdowns: why the hardware held the clock down at any time while the samples were taken; a power cap is no such
    reason. unstable_rel_error: the standard error of the median over the median from which on it is not known. turns:
    of how many turns, one after the other and each with as many samples, whose own differences count as well. step_ms:
    the median of the step of which this is a phase, 0 for a time that stands alone.
    """
    if slowdowns:
        return f"GPU slowed down: {', '.join(slowdowns)}"
    median_ms = statistics.median(samples_ms)
    negligible_ms = NEGLIGIBLE_SHARE * unstable_rel_error * step_ms
    if turns > 1:
        medians_ms = [statistics.median(turn) for turn in _in_turns(samples_ms, turns)]
        # The standard error of the mean of turns.
        error_ms = statistics.stdev(medians_ms) / turns**0.5
        if error_ms > max(unstable_rel_error * median_ms, negligible_ms):
            return f"rounds lie {max(medians_ms) / min(medians_ms) - 1:.0%} apart"
    error = rel_error(samples_ms)
    if len(samples_ms) > 1 and error > unstable_rel_error and error * median_ms > negligible_ms:
        return f"median known to {error:.1%} only"
    return None


def _in_turns(samples_ms: Sequence[float], turns: int) -> list[Sequence[float]]:
    each, rest = divmod(len(samples_ms), turns)
    if not each or rest:
        raise ValueError(f"{len(samples_ms)} samples are not of {turns} turns with as many each")
    return [samples_ms[start : start + each] for start in range(0, len(samples_ms), each)]
