"""Read one GPU's health from NVML: error counters, links, and clocks, temperature and power under load.

A value that the card, driver or container does not support is absent, with NVML's reason; it is never taken for 0.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pynvml

from pipeline.instruments.machine.gpu_state import reason_names

_NVLINK_COUNTERS = {
    "nvlink_replays": (pynvml.NVML_NVLINK_ERROR_DL_REPLAY,),
    "nvlink_recoveries": (pynvml.NVML_NVLINK_ERROR_DL_RECOVERY,),
    "nvlink_crc_errors": (pynvml.NVML_NVLINK_ERROR_DL_CRC_FLIT, pynvml.NVML_NVLINK_ERROR_DL_CRC_DATA),
}


class HealthReader:
    """Read one GPU by its NVML handle; `absent` has NVML's reason for each value that it does not report.

    library: NVML's bindings, pynvml or a stand-in.
    """

    def __init__(self, handle: Any, library: Any = pynvml) -> None:
        self._handle, self._nvml = handle, library
        self.absent: dict[str, str] = {}
        self._seen: dict[str, list[float]] = defaultdict(list)
        self._reasons: set[str] | None = None

    def utilization_percent(self) -> int | None:
        """Return the share (%) of the last sampling period in which a kernel ran."""
        rates = self._ask("utilization_before_pct", lambda: self._nvml.nvmlDeviceGetUtilizationRates(self._handle))
        return None if rates is None else rates.gpu

    def counters(self) -> dict[str, int | None]:
        """Read the errors counted so far and the state of the links."""
        nvml, handle = self._nvml, self._handle
        ecc = nvml.nvmlDeviceGetTotalEccErrors
        corrected, uncorrected = pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
        since_start, ever = pynvml.NVML_VOLATILE_ECC, pynvml.NVML_AGGREGATE_ECC
        queries: Mapping[str, Callable[[], int]] = {
            "ecc_corrected": lambda: ecc(handle, corrected, since_start),
            "ecc_uncorrected": lambda: ecc(handle, uncorrected, since_start),
            "ecc_corrected_ever": lambda: ecc(handle, corrected, ever),
            "ecc_uncorrected_ever": lambda: ecc(handle, uncorrected, ever),
            "failed_row_remaps": lambda: int(nvml.nvmlDeviceGetRemappedRows(handle)[3]),
            "max_pcie_generation": lambda: nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle),
            "max_pcie_width": lambda: nvml.nvmlDeviceGetMaxPcieLinkWidth(handle),
        }
        return {name: self._ask(name, query) for name, query in queries.items()} | self._nvlinks()

    def poll(self) -> None:
        """Record clocks, power, temperature, PCIe link and throttle reasons of a GPU under load."""
        nvml, handle = self._nvml, self._handle
        queries: Mapping[str, Callable[[], float]] = {
            "sm_clocks_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM),
            "memory_clocks_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM),
            "powers_w": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
            "temperatures_c": lambda: nvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU),
            "pcie_generations": lambda: nvml.nvmlDeviceGetCurrPcieLinkGeneration(handle),
            "pcie_widths": lambda: nvml.nvmlDeviceGetCurrPcieLinkWidth(handle),
        }
        for name, query in queries.items():
            value = self._ask(name, query)
            if value is not None:
                self._seen[name].append(value)
        bits = self._ask("throttle_reasons", lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
        if bits is not None:
            self._reasons = (self._reasons or set()) | set(reason_names(bits))

    def under_load(self) -> dict[str, list[Any] | None]:
        """Return what `poll` recorded, in order, and each throttle reason once; None for what NVML does not report."""
        names = ("sm_clocks_mhz", "memory_clocks_mhz", "powers_w", "temperatures_c", "pcie_generations", "pcie_widths")
        reasons = None if self._reasons is None else sorted(self._reasons)
        return {**{name: self._seen.get(name) for name in names}, "throttle_reasons": reasons}

    def _nvlinks(self) -> dict[str, int | None]:
        """Count the GPU's NVLinks, those that are up, and the errors of these."""
        states: dict[int, int] = {}
        for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
            state = self._ask("nvlinks", partial(self._nvml.nvmlDeviceGetNvLinkState, self._handle, link))
            if state is not None:
                states[link] = state
        if not states:
            return dict.fromkeys(("nvlinks", "nvlinks_up", *_NVLINK_COUNTERS))
        self.absent.pop("nvlinks", None)  # left by link numbers that this model does not have
        up = [link for link, state in states.items() if state == 1]
        counted = {name: self._nvlink_errors(name, up) for name in _NVLINK_COUNTERS}
        return {"nvlinks": len(states), "nvlinks_up": len(up), **counted}

    def _nvlink_errors(self, name: str, links: list[int]) -> int | None:
        if not links:
            return None
        count = self._nvml.nvmlDeviceGetNvLinkErrorCounter
        kinds = _NVLINK_COUNTERS[name]
        return self._ask(name, lambda: sum(count(self._handle, link, kind) for link in links for kind in kinds))

    def _ask(self, name: str, query: Callable[[], Any]) -> Any:
        try:
            return query()
        except pynvml.NVMLError as error:
            self.absent[name] = str(error)
            return None
