"""Whether a row's samples can be trusted, and what the GPU was doing when they were taken."""

from collections.abc import Sequence
from typing import Any

from pipeline.instruments.sampling.summary import rel_error


def status_columns(samples_ms: Sequence[float], slowdowns: Sequence[str], unstable_rel_error: float) -> dict[str, str]:
    """Return the status of samples: `unstable`, with the reason, after a slow-down or where the median is not known.

    slowdowns: why the hardware held the clock down while they were taken; unstable_rel_error: the standard error of the
    median over the median from which on it counts as not known.
    """
    if slowdowns:
        return {"status": "unstable", "reason": f"GPU slowed down: {', '.join(slowdowns)}"}
    error = rel_error(samples_ms)
    if len(samples_ms) > 1 and error > unstable_rel_error:
        return {"status": "unstable", "reason": f"median known to {error:.1%} only"}
    return {"status": "ok"}


def gpu_columns(state_before: list[dict[str, Any]], state_after: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the first GPU's clocks, temperature, power and throttle reasons; nothing where NVML is not there."""
    if not state_after:
        return {}
    before, after = state_before[0], state_after[0]
    return {
        "sm_clock_before_mhz": before["sm_clock_mhz"],
        "sm_clock_mhz": after["sm_clock_mhz"],
        "temperature_c": after["temperature_c"],
        "power_w": after["power_w"],
        "throttle_reasons": after["throttle_reasons"],
    }
