"""Read what the GPUs are doing now, and whether values taken now can be trusted."""

from collections.abc import Collection
from typing import Any

import pynvml

from pipeline.instruments.machine.gpus import Gpu, ask, visible_gpus

_REASON_NAMES = {
    pynvml.nvmlClocksEventReasonGpuIdle: "gpu_idle",
    pynvml.nvmlClocksEventReasonApplicationsClocksSetting: "applications_clocks",
    pynvml.nvmlClocksEventReasonSwPowerCap: "sw_power_cap",
    pynvml.nvmlClocksEventReasonHwSlowdown: "hw_slowdown",
    pynvml.nvmlClocksEventReasonSyncBoost: "sync_boost",
    pynvml.nvmlClocksEventReasonSwThermalSlowdown: "sw_thermal_slowdown",
    pynvml.nvmlClocksEventReasonHwThermalSlowdown: "hw_thermal_slowdown",
    pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown: "hw_power_brake",
    pynvml.nvmlClocksEventReasonDisplayClockSetting: "display_clock",
}

# Idle GPUs, clocks set by a user and the power cap are part of normal operation; these are not.
_SLOWDOWNS = ("hw_slowdown", "hw_thermal_slowdown", "sw_thermal_slowdown", "hw_power_brake")


def gpu_state() -> list[dict[str, Any]]:
    """Read clocks, temperature, power, load and throttle reasons of the visible GPUs, one dict each.

    A value that NVML does not support here is None; without NVML the list is empty.
    """
    return [_state(gpu) for gpu in visible_gpus() if gpu.handle is not None]


def slowdown_reasons(state: list[dict[str, Any]]) -> list[str]:
    """Name the throttle reasons in a `gpu_state` that make values untrustworthy: heat, or failing power."""
    return slowdowns_among({reason for gpu in state for reason in gpu["throttle_reasons"] or ()})


def slowdowns_among(reasons: Collection[str]) -> list[str]:
    """Select the throttle reasons that make values untrustworthy."""
    return [reason for reason in _SLOWDOWNS if reason in reasons]


def throttle_reasons(gpu: Gpu) -> list[str] | None:
    """Name the reasons why a GPU's clock is below its maximum now; None if NVML does not report them."""
    bits = ask(pynvml.nvmlDeviceGetCurrentClocksEventReasons, gpu.handle)
    if bits is None:  # drivers before 535 have the same mask under an older name
        bits = ask(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, gpu.handle)
    return None if bits is None else reason_names(bits)


def reason_names(bits: int) -> list[str]:
    """Name the throttle reasons in NVML's bit mask; unknown ones by their bit in hex."""
    active = [1 << position for position in range(bits.bit_length()) if bits >> position & 1]
    return [_REASON_NAMES.get(bit, hex(bit)) for bit in active]


def _state(gpu: Gpu) -> dict[str, Any]:
    power_mw = ask(pynvml.nvmlDeviceGetPowerUsage, gpu.handle)
    utilization = ask(pynvml.nvmlDeviceGetUtilizationRates, gpu.handle)
    memory = ask(pynvml.nvmlDeviceGetMemoryInfo, gpu.handle)
    return {
        "index": gpu.index,
        "sm_clock_mhz": ask(pynvml.nvmlDeviceGetClockInfo, gpu.handle, pynvml.NVML_CLOCK_SM),
        "memory_clock_mhz": ask(pynvml.nvmlDeviceGetClockInfo, gpu.handle, pynvml.NVML_CLOCK_MEM),
        "temperature_c": ask(pynvml.nvmlDeviceGetTemperature, gpu.handle, pynvml.NVML_TEMPERATURE_GPU),
        "power_w": None if power_mw is None else power_mw / 1000,
        "utilization_percent": None if utilization is None else utilization.gpu,
        "memory_free_bytes": None if memory is None else memory.free,
        "throttle_reasons": throttle_reasons(gpu),
    }
