from types import SimpleNamespace

import pynvml
import pytest

from pipeline.instruments.machine.gpu_health import HealthReader

from .nvml import FakeGpu, FakeNvml

LINKS = [1, 0, 1]  # one is down


def link_state(link):
    if link >= len(LINKS):
        raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
    return LINKS[link]


def link_errors(link, counter):
    assert LINKS[link], "a link that is down is not asked"
    return 10**counter


ANSWERS = {
    "TotalEccErrors": lambda kind, counter: {(0, 0): 5, (1, 0): 1, (0, 1): 50, (1, 1): 10}[kind, counter],
    "RemappedRows": (2, 1, 0, 1),
    "NvLinkState": link_state,
    "NvLinkErrorCounter": link_errors,
    "ClockInfo": {pynvml.NVML_CLOCK_SM: 1980, pynvml.NVML_CLOCK_MEM: 2619}.get,
    "CurrentClocksEventReasons": pynvml.nvmlClocksEventReasonSwPowerCap,
    "UtilizationRates": SimpleNamespace(gpu=97),
    "PowerUsage": 700_000,
    **dict.fromkeys(("MaxPcieLinkGeneration", "CurrPcieLinkGeneration"), 5),
    **dict.fromkeys(("MaxPcieLinkWidth", "CurrPcieLinkWidth"), 16),
}


@pytest.fixture
def gpu():
    """A card with three NVLinks; it does not support queries that are removed from its answers."""
    return FakeGpu(0, answers={f"nvmlDeviceGet{name}": answer for name, answer in ANSWERS.items()})


def test_counters_are_read_separately_and_links_are_counted(gpu):
    reader = HealthReader(gpu, FakeNvml())
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
        ("TotalEccErrors", {"ecc_corrected", "ecc_uncorrected_ever"}),
        ("NvLinkState", {"nvlinks", "nvlinks_up", "nvlink_replays"}),
        ("NvLinkErrorCounter", {"nvlink_crc_errors"}),
        ("MaxPcieLinkWidth", {"max_pcie_width"}),
    ],
)
def test_a_counter_the_card_does_not_support_is_absent_with_a_reason_and_never_zero(gpu, query, names):
    del gpu.answers[f"nvmlDeviceGet{query}"]
    reader = HealthReader(gpu, FakeNvml())
    found = reader.counters()
    assert {found[name] for name in names} == {None}
    assert set(reader.absent.values()) == {"Not Supported"}
    assert names & set(reader.absent)


def test_readings_under_load_are_in_order_and_unsupported_ones_are_absent(gpu):
    reader = HealthReader(gpu, FakeNvml())
    reader.poll()
    gpu.answers["nvmlDeviceGetPowerUsage"] = 300_000
    gpu.answers["nvmlDeviceGetCurrentClocksEventReasons"] = pynvml.nvmlClocksEventReasonHwThermalSlowdown
    reader.poll()
    found = reader.under_load()
    assert (found["sm_clocks_mhz"], found["powers_w"]) == ([1980, 1980], [700.0, 300.0])
    assert found["throttle_reasons"] == ["hw_thermal_slowdown", "sw_power_cap"]
    assert found["temperatures_c"] is None
    del gpu.answers["nvmlDeviceGetCurrentClocksEventReasons"]
    other = HealthReader(gpu, FakeNvml())
    other.poll()
    assert other.under_load()["throttle_reasons"] is None
    assert set(other.absent) == {"temperatures_c", "throttle_reasons"}
