"""NVML's readings of the first GPU before, during and after sampling, as columns of a row."""

from collections.abc import Sequence
from typing import Any

from pipeline.instruments.machine.power import Power


def gpu_columns(
    state_before: Sequence[dict[str, Any]], state_after: Sequence[dict[str, Any]], power: Power, slowdowns: list[str]
) -> dict[str, Any]:
    """Return the first GPU's clocks, temperature, power and throttle reasons; without NVML only slowdowns, if any.

    power: what was seen between the two states; slowdowns: why the hardware slowed a clock meanwhile.
    """
    if not state_after:
        return {"slowdowns": slowdowns} if slowdowns else {}
    before, after = state_before[0], state_after[0]
    return {
        "sm_clock_before_mhz": before["sm_clock_mhz"],
        "sm_clock_mhz": after["sm_clock_mhz"],
        "temperature_c": after["temperature_c"],
        "power_w": after["power_w"],
        "throttle_reasons": after["throttle_reasons"],
        "mean_sm_clock_mhz": power.sm_clock_mhz,
        "power_capped": power.power_capped,
        "slowdowns": slowdowns,
    }
