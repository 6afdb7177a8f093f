from types import SimpleNamespace

import pynvml
import pytest

from pipeline.instruments.machine.gpu_health import HealthReader

LINKS = 3


class Library:
    """NVML of a card with three NVLinks, one down; what is in `lacks` it does not support."""

    def __init__(self, lacks=()):
        self.lacks, self.clock_mhz, self.reasons = lacks, 1980, pynvml.nvmlClocksEventReasonSwPowerCap

    def __getattr__(self, name):
        def query(_handle, *arguments):
            if name in self.lacks:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
            return getattr(self, f"_{name.removeprefix('nvmlDeviceGet')}")(*arguments)

        return query

    def _TotalEccErrors(self, kind, counter):  # noqa: N802 - as NVML calls it
        return {(0, 0): 5, (1, 0): 1, (0, 1): 50, (1, 1): 10}[kind, counter]

    def _RemappedRows(self):  # noqa: N802
        return 2, 1, 0, 1

    def _NvLinkState(self, link):  # noqa: N802
        if link >= LINKS:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return int(link != 1)

    def _NvLinkErrorCounter(self, link, counter):  # noqa: N802
        assert link != 1, "a link that is down is not asked"
        return 10**counter

    def _ClockInfo(self, kind):  # noqa: N802
        return self.clock_mhz if kind == pynvml.NVML_CLOCK_SM else 2619

    def _CurrentClocksEventReasons(self):  # noqa: N802
        return self.reasons

    _UtilizationRates = staticmethod(lambda: SimpleNamespace(gpu=97))
    _MaxPcieLinkGeneration = _CurrPcieLinkGeneration = staticmethod(lambda: 5)
    _MaxPcieLinkWidth = _CurrPcieLinkWidth = staticmethod(lambda: 16)
    _PowerUsage = staticmethod(lambda: 700_000)
    _Temperature = staticmethod(lambda _sensor: 61)


def test_counters_are_kept_apart_and_links_are_counted():
    reader = HealthReader(0, Library())
    assert reader.counters() == {
        "ecc_corrected": 5,
        "ecc_uncorrected": 1,
        "ecc_corrected_ever": 50,
        "ecc_uncorrected_ever": 10,
        "failed_row_remaps": 1,
        "max_pcie_generation": 5,
        "max_pcie_width": 16,
        "nvlinks": 3,
        "nvlinks_up": 2,
        "nvlink_replays": 2,
        "nvlink_recoveries": 20,
        "nvlink_crc_errors": 2200,
    }
    assert reader.absent == {}
    assert reader.utilization_percent() == 97


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("nvmlDeviceGetTotalEccErrors", {"ecc_corrected", "ecc_uncorrected_ever"}),
        ("nvmlDeviceGetNvLinkState", {"nvlinks", "nvlinks_up", "nvlink_replays"}),
        ("nvmlDeviceGetNvLinkErrorCounter", {"nvlink_crc_errors"}),
        ("nvmlDeviceGetMaxPcieLinkWidth", {"max_pcie_width"}),
    ],
)
def test_what_a_card_does_not_support_is_absent_with_nvmls_reason_and_never_zero(query, names):
    reader = HealthReader(0, Library([query]))
    found = reader.counters()
    assert all(found[name] is None for name in names)
    assert set(reader.absent.values()) == {"Not Supported"}
    assert names & set(reader.absent)


def test_readings_under_load_are_in_order_and_reasons_are_gathered():
    library = Library()
    reader = HealthReader(0, library)
    reader.poll()
    library.clock_mhz, library.reasons = 1200, pynvml.nvmlClocksEventReasonHwThermalSlowdown
    reader.poll()
    found = reader.under_load()
    assert (found["sm_clocks_mhz"], found["powers_w"]) == ([1980, 1200], [700.0, 700.0])
    assert found["throttle_reasons"] == ["hw_thermal_slowdown", "sw_power_cap"]


def test_a_reading_under_load_that_is_not_supported_is_absent():
    reader = HealthReader(0, Library(["nvmlDeviceGetPowerUsage", "nvmlDeviceGetCurrentClocksEventReasons"]))
    reader.poll()
    found = reader.under_load()
    assert (found["powers_w"], found["throttle_reasons"]) == (None, None)
    assert set(reader.absent) == {"powers_w", "throttle_reasons"}
