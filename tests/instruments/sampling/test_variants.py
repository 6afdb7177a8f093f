from pipeline.instruments.machine.power import Power
from pipeline.instruments.profilers.gpu_busy import GpuBusy
from pipeline.instruments.sampling.gpu_readings import gpu_columns
from pipeline.instruments.sampling.step_timing import Sampling, Timings
from pipeline.instruments.sampling.variants import step_rows, turns

NO_POWER = Power()
ROUGH_WAIT_MS = [0.001, 0.01, 0.1, 0.5]


def sampling(step_ms, throttle_reasons=(), events_ms=(), power=NO_POWER):
    after = {"sm_clock_mhz": 1980, "temperature_c": 70, "power_w": 650.0, "throttle_reasons": list(throttle_reasons)}
    timings = {"communication": Timings(ROUGH_WAIT_MS), "train_step": Timings(step_ms, list(events_ms))}
    return Sampling(timings, [{**after, "sm_clock_mhz": 1500, "power_w": 90.0}], [after], power)


def by_name(rows):
    return {(row["phase"], row["clock"]): row for row in rows}


def test_turns_go_back_and_forth_and_the_first_round_is_marked():
    later = [(name, False) for name in "baab"]
    assert list(turns("ab", rounds=3)) == [("a", True), ("b", True), *later]


def test_there_is_a_row_per_phase_and_clock_with_the_samples_of_all_turns():
    rows = by_name(step_rows([sampling([1.0, 2.0], events_ms=[0.5]), sampling([3.0], events_ms=[0.7])], None))
    assert list(rows) == [("communication", "host"), ("train_step", "host"), ("train_step", "cuda_events")]
    assert rows["train_step", "host"]["samples_ms"] == [1.0, 2.0, 3.0]
    assert {(row["status"], row["turns"]) for row in rows.values()} == {("ok", 2)}
    read = {"sm_clock_before_mhz": 1500, "sm_clock_mhz": 1980, "temperature_c": 70, "power_w": 650.0}
    assert all(read.items() <= row.items() for row in rows.values())
    assert rows["train_step", "cuda_events"]["samples_ms"] == [0.5, 0.7]
    assert len(rows["communication", "host"]["samples_ms"]) == 2 * len(ROUGH_WAIT_MS)


def test_only_the_host_clock_row_of_the_whole_step_has_what_the_gpu_did():
    samplings = [sampling([10.0], events_ms=[9.0], power=Power(energy, 1500.0, False)) for energy in (3.0, 5.0)]
    rows = by_name(step_rows(samplings, GpuBusy(7.0, 90, 2.5, 11.0)))
    whole = rows.pop(("train_step", "host"))
    assert (whole["gpu_busy_ms"], whole["launches"], whole["exposed_communication_ms"]) == (7.0, 90, 2.5)
    assert whole["energy_j"] == 4.0
    assert all(row["mean_sm_clock_mhz"] == 1500 and row["power_capped"] is False for row in rows.values())
    assert not any("gpu_busy_ms" in row or "energy_j" in row for row in rows.values())


def test_every_row_has_the_slowdowns_of_all_turns_and_without_nvml_no_gpu_columns():
    rows = step_rows([sampling([10.0], ["hw_thermal_slowdown"]), sampling([10.0], ["gpu_idle"])], None)
    assert [(row["slowdowns"], row["throttle_reasons"]) for row in rows] == [
        (["hw_thermal_slowdown"], ["gpu_idle"])
    ] * 2
    assert gpu_columns([], [], NO_POWER, []) == {}
