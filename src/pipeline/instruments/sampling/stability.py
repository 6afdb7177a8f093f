"""Whether a row's samples can be trusted, and what the GPU was doing when they were taken."""

import statistics
from collections.abc import Sequence
from typing import Any

from pipeline.instruments.machine.power import Power
from pipeline.instruments.sampling.summary import quartiles, rel_error

# An error of a phase below this share of the step's own limit is no reason for doubt: a wait of microseconds is noise.
NEGLIGIBLE_SHARE = 0.2


def status_columns(
    samples_ms: Sequence[float],
    slowdowns: Sequence[str],
    unstable_rel_error: float,
    round_medians_ms: Sequence[float] = (),
    step_ms: float = 0.0,
) -> dict[str, str]:
    """Judge one row by its own samples: the columns status, "ok" or "unstable", and, where unstable, reason.

    This is the one rule for it. slowdowns: why the hardware held the clock down at any time while the samples were
    taken; a power cap is no such reason. unstable_rel_error: the standard error of the median over the median from
    which on it is not known. round_medians_ms: the medians of rounds that were pooled, whose own differences count as
    well. step_ms: the median of the step of which this is a phase, 0 for a figure that stands alone.
    """
    if slowdowns:
        return {"status": "unstable", "reason": f"GPU slowed down: {', '.join(slowdowns)}"}
    median_ms = quartiles(samples_ms)[1]
    negligible_ms = NEGLIGIBLE_SHARE * unstable_rel_error * step_ms
    if len(round_medians_ms) > 1:
        # The standard error of the mean of rounds.
        error_ms = statistics.stdev(round_medians_ms) / len(round_medians_ms) ** 0.5
        if error_ms > max(unstable_rel_error * median_ms, negligible_ms):
            apart = max(round_medians_ms) / min(round_medians_ms) - 1
            return {"status": "unstable", "reason": f"rounds lie {apart:.0%} apart"}
    error = rel_error(samples_ms)
    if len(samples_ms) > 1 and error > unstable_rel_error and error * median_ms > negligible_ms:
        return {"status": "unstable", "reason": f"median known to {error:.1%} only"}
    return {"status": "ok"}


def gpu_columns(state_before: list[dict[str, Any]], state_after: list[dict[str, Any]], power: Power) -> dict[str, Any]:
    """Return the first GPU's clocks, temperature, power and throttle reasons; nothing where NVML is not there.

    power: what was seen between the two states.
    """
    if not state_after:
        return {}
    before, after = state_before[0], state_after[0]
    return {
        "sm_clock_before_mhz": before["sm_clock_mhz"],
        "sm_clock_mhz": after["sm_clock_mhz"],
        "temperature_c": after["temperature_c"],
        "power_w": after["power_w"],
        "throttle_reasons": after["throttle_reasons"],
        "mean_sm_clock_mhz": power.sm_clock_mhz,
        "power_capped": power.power_capped,
    }
