from pipeline.instruments.machine.power import Power
from pipeline.instruments.sampling.gpu_readings import gpu_columns


def test_the_columns_of_a_gpu_are_those_after_the_last_sample_and_the_clock_before_the_first():
    before = {"sm_clock_mhz": 1900, "temperature_c": 35, "power_w": 90.0, "throttle_reasons": []}
    after = {"sm_clock_mhz": 1500, "temperature_c": 70, "power_w": 650.0, "throttle_reasons": ["hw_power_brake"]}
    meanwhile = Power(sm_clock_mhz=1650.0, power_capped=True)
    read = {"sm_clock_before_mhz": 1900, **after, "mean_sm_clock_mhz": 1650.0, "power_capped": True}
    assert gpu_columns([before], [after], meanwhile, ["hw_power_brake"]) == read | {"slowdowns": ["hw_power_brake"]}


def test_without_nvml_there_are_no_gpu_columns():
    assert gpu_columns([], [], Power(), []) == {}
