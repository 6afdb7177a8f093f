from dataclasses import asdict

import pytest

from pipeline.cells.timed_rows import doubt_about_median, idle_columns
from pipeline.stages.ddp.cell import Cell, Settings
from pipeline.stages.ddp.rows import ROW_TYPES

from ..records import CPU

SOUND = {"impl": "naive", "status": "ok", "clock": "host", "backend": "gloo", "gradient_bytes": 8, "all_reduces": 1}
SOUND |= {"all_reduce_bytes": 8, "rank_difference": 0.0, "weight_tolerance": 0.1}


@pytest.mark.parametrize(
    ("wall_ms", "exposed_ms", "idle_pct", "limited_by"),
    [
        (12.5, 0.0, 20.0, "host"),
        (12.4, 0.0, pytest.approx(19.35, abs=0.01), "gpu"),
        (10.0, 2.0, 0.0, "communication"),
        (10.0, 1.9, 0.0, "gpu"),
        (20.0, 8.0, 50.0, "host"),  # idle time takes precedence over communication
        (9.0, 0.0, 0.0, "gpu"),  # busy time is from another clock and other steps: idle is never below 0
    ],
)
def test_idle_time_and_exposed_communication_decide_what_limits_a_step(wall_ms, exposed_ms, idle_pct, limited_by):
    row = {"gpu_busy_ms": 10.0, "exposed_communication_ms": exposed_ms}
    assert idle_columns(row, wall_ms) == {"gpu_idle_pct": idle_pct, "limited_by": limited_by}


def test_a_step_slowed_by_profiling_is_not_judged_by_communication():
    row = {"gpu_busy_ms": 10.0, "exposed_communication_ms": 2.0}
    assert idle_columns(row | {"profiled_ms": 10.4}, 10.0) == {}
    assert idle_columns(row | {"profiled_ms": 10.2}, 10.0)["limited_by"] == "communication"
    assert idle_columns(row | {"profiled_ms": 99.0}, 20.0)["limited_by"] == "host"
    assert idle_columns(row | {"profiled_ms": 99.0, "exposed_communication_ms": 0.0}, 10.0)["limited_by"] == "gpu"


def read_rows(turns=1, wait_ms=None, **columns):
    """Return a ddp cell's whole step and its wait for communication, with derived columns."""
    step = SOUND | {"phase": "train_step", "samples_ms": [10.0] * 4, "turns": turns} | columns
    wait = SOUND | {"phase": "communication", "samples_ms": wait_ms or [1.0] * 4, "turns": turns}
    return ROW_TYPES.complete(Cell(), asdict(Settings()), CPU, [step, wait])


def test_a_step_and_its_phases_are_judged_separately_for_stability():
    for columns in ({"samples_ms": [10.0] * 4 + [15.0] * 4, "turns": 2}, {"slowdowns": ["hw_thermal_slowdown"]}):
        step, wait = read_rows(**columns)
        assert (step["status"], wait["status"], wait.get("reason")) == ("unstable", "ok", None)
        assert step["reason"] in ("turn medians differ by 50%", "GPU slowed down: hw_thermal_slowdown")
    for scale, status in ((0.1, "ok"), (100, "unstable")):
        step, wait = read_rows(wait_ms=[wait * scale for wait in (0.001, 0.01, 0.1, 0.5)])
        assert (step["status"], wait["status"]) == ("ok", status)


def test_tokens_and_energy_give_tokens_per_joule():
    step, _ = read_rows(energy_j=4.0)
    cell = Cell()
    assert step["tokens"] == cell.world_size * cell.batch_size_per_rank * cell.context_length
    assert step["tokens_per_j"] == step["tokens"] / 4.0


STEADY, NOISY, WAITS, APART = [10.0] * 10, [10.0, 20.0] * 5, [0.1, 0.2] * 5, [230.0] * 50 + [292.0] * 50
TWO = {"turns": 2}


@pytest.mark.parametrize(
    ("samples_ms", "given", "why"),
    [
        (STEADY, {}, None),
        ([10.0], {}, None),
        (NOISY, {}, "standard error of the median "),
        ([0.001] * 3 + [100.0] * 2, {}, "median unknown"),
        (STEADY, {"slowdowns": ["hw_thermal_slowdown"]}, "GPU slowed down: hw_thermal_slowdown"),
        # Turns that differ have no common value, however many samples they have.
        (APART, TWO, "turn medians differ by 27%"),
        (APART, {}, "standard error of the median "),
        ([100.0] * 50 + [105.0] * 50, TWO, None),
        ([100.0] * 50 + [112.0] * 50, TWO, "turn medians differ by 12%"),  # a mean off by 6
        # Noise of a phase that is negligible in the step does not count.
        (WAITS, {"step_ms": 1.0}, "standard error of the median "),
        (WAITS, {"step_ms": 100.0}, None),
        (sorted(WAITS), {"step_ms": 100.0} | TWO, None),
    ],
)
def test_noise_slowdowns_and_differing_turns_are_unstable_unless_negligible(samples_ms, given, why):
    found = doubt_about_median(samples_ms, **{"slowdowns": [], "unstable_rel_error": 0.05, **given})
    assert found is None if why is None else found.startswith(why)


def test_samples_that_do_not_divide_into_turns_are_refused():
    with pytest.raises(ValueError, match=r"row 1: its derived columns cannot be computed: .*4 samples .* 3 turns"):
        read_rows(turns=3)
