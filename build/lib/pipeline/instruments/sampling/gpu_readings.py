"""What NVML says of the first GPU before, while and after samples were taken, as columns of their row."""

from collections.abc import Sequence
from typing import Any

from pipeline.instruments.machine.power import Power


def gpu_columns(
    state_before: Sequence[dict[str, Any]], state_after: Sequence[dict[str, Any]], power: Power, slowdowns: list[str]
) -> dict[str, Any]:
    """Return the first GPU's clocks, temperature, power and throttle reasons; nothing where NVML is not there.

    power: what was seen between the two states; slowdowns: why the hardware held a clock down meanwhile.
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
