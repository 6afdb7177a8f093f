import pytest

from pipeline.instruments.machine.power import Power
from pipeline.instruments.sampling.stability import gpu_columns, status_columns

STEADY, NOISY = [10.0] * 10, [10.0, 20.0] * 5


@pytest.mark.parametrize(
    ("samples_ms", "slowdowns", "status"),
    [(STEADY, [], "ok"), (NOISY, [], "unstable"), (STEADY, ["hw_thermal_slowdown"], "unstable"), ([10.0], [], "ok")],
)
def test_noise_and_slowdowns_make_samples_unstable(samples_ms, slowdowns, status):
    found = status_columns(samples_ms, slowdowns, unstable_rel_error=0.05)
    assert found["status"] == status
    assert all(reason in found["reason"] for reason in slowdowns)


def test_rounds_that_differ_are_no_single_figure_however_many_samples_they_have():
    samples_ms = [230.0] * 50 + [292.0] * 50
    found = status_columns(samples_ms, [], 0.05, round_medians_ms=[230.0, 292.0])
    assert found == {"status": "unstable", "reason": "rounds lie 27% apart"}
    assert status_columns([100.0] * 50 + [105.0] * 50, [], 0.05, round_medians_ms=[100.0, 105.0]) == {"status": "ok"}


def test_noise_of_a_phase_that_the_step_would_not_notice_is_no_reason_for_doubt():
    waits_ms = [0.1, 0.2] * 5
    assert status_columns(waits_ms, [], 0.05)["status"] == "unstable"
    assert status_columns(waits_ms, [], 0.05, step_ms=1.0)["status"] == "unstable"
    assert status_columns(waits_ms, [], 0.05, step_ms=100.0)["status"] == "ok"
    assert status_columns(waits_ms, [], 0.05, round_medians_ms=[0.1, 0.2], step_ms=100.0)["status"] == "ok"


def test_the_columns_of_a_gpu_are_those_after_the_last_sample_and_the_clock_before_the_first():
    before = {"sm_clock_mhz": 1900, "temperature_c": 35, "power_w": 90.0, "throttle_reasons": []}
    after = {"sm_clock_mhz": 1500, "temperature_c": 70, "power_w": 650.0, "throttle_reasons": ["hw_power_brake"]}
    meanwhile = Power(sm_clock_mhz=1650.0, power_capped=True)
    expected = {"sm_clock_before_mhz": 1900, **after, "mean_sm_clock_mhz": 1650.0, "power_capped": True}
    assert gpu_columns([before], [after], meanwhile) == expected


def test_without_nvml_there_are_no_gpu_columns():
    assert gpu_columns([], [], Power()) == {}
