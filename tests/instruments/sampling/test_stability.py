import pytest

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


def test_the_columns_of_a_gpu_are_those_after_the_last_sample_and_the_clock_before_the_first():
    before = {"sm_clock_mhz": 1900, "temperature_c": 35, "power_w": 90.0, "throttle_reasons": []}
    after = {"sm_clock_mhz": 1500, "temperature_c": 70, "power_w": 650.0, "throttle_reasons": ["hw_power_brake"]}
    assert gpu_columns([before], [after]) == {"sm_clock_before_mhz": 1900, **after}


def test_without_nvml_there_are_no_gpu_columns():
    assert gpu_columns([], []) == {}
