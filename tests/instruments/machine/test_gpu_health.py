from types import SimpleNamespace

import pynvml
import pytest

from pipeline.instruments.machine.gpu_health import HealthReader

INVALID, UNSUPPORTED = pynvml.NVML_ERROR_INVALID_ARGUMENT, pynvml.NVML_ERROR_NOT_SUPPORTED
LINKS = [1, 0, 1]  # of which one is down


def link_errors(link, counter):
    assert LINKS[link], "a link that is down is not asked"
    return 10**counter


class Library:
    """NVML of a card with three NVLinks; what is in `lacks` it does not support."""

    def __init__(self, lacks=()):
        self.lacks, self.clock_mhz, self.reasons = lacks, 1980, pynvml.nvmlClocksEventReasonSwPowerCap
        self.answers = {
            "TotalEccErrors": lambda kind, counter: {(0, 0): 5, (1, 0): 1, (0, 1): 50, (1, 1): 10}[kind, counter],
            "RemappedRows": lambda: (2, 1, 0, 1),
            "NvLinkState": LINKS.__getitem__,
            "NvLinkErrorCounter": link_errors,
            "ClockInfo": lambda kind: self.clock_mhz if kind == pynvml.NVML_CLOCK_SM else 2619,
            "CurrentClocksEventReasons": lambda: self.reasons,
            "UtilizationRates": lambda: SimpleNamespace(gpu=97),
            "PowerUsage": lambda: 700_000,
            "Temperature": lambda _sensor: 61,
        }
        self.answers |= dict.fromkeys(("MaxPcieLinkGeneration", "CurrPcieLinkGeneration"), lambda: 5)
        self.answers |= dict.fromkeys(("MaxPcieLinkWidth", "CurrPcieLinkWidth"), lambda: 16)

    def __getattr__(self, name):
        def query(_handle, *arguments):
            if name in self.lacks:
                raise pynvml.NVMLError(UNSUPPORTED)
            try:
                return self.answers[name.removeprefix("nvmlDeviceGet")](*arguments)
            except IndexError:  # the number of a link that it does not have
                raise pynvml.NVMLError(INVALID) from None

        return query


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
