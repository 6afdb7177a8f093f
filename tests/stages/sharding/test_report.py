import pytest

from pipeline.stages.sharding.report import OURS, PLAIN, TORCHS, build

from ..frames import failed, frame_of, shown, step

GB = 10**9
STATE_GB = {"adamw": 16, "sharded": 8, "torch_zero": 8}
NAMES = {"adamw": PLAIN, "sharded": OURS, "torch_zero": TORCHS}


def rows_of(impl, median_ms, weight_difference=0.0):
    apart = {"rank_difference": 0.0, "weight_difference": weight_difference}
    cell = step(impl, median_ms, **apart)
    timeless = dict.fromkeys(("median_ms", "samples_ms", "phase", "clock", "q1_ms", "q3_ms"))
    other = cell | timeless
    moments = {"initialised": (0, 0, 9), "before_step": (8, STATE_GB[impl], 70), "after_step": (8, STATE_GB[impl], 40)}
    memory = [
        other | {"measures": "memory", "moment": moment, "kind": kind, "measured_bytes": size * GB}
        for moment, (gradients, state, peak) in moments.items()
        for kind, size in {"parameters": 8, "gradients": gradients, "optimizer_state": state, "peak": peak}.items()
    ]
    sent = {"allreduce": 8 * GB, "broadcast": 0 if impl == "adamw" else 4 * GB}
    traffic = [other | {"measures": "traffic", "collective": name, "sent_bytes": size} for name, size in sent.items()]
    optimizer = step(impl, median_ms / 10, **apart, phase="optimizer")
    return [cell, optimizer, *memory, *traffic]


def section(*rows):
    return build(frame_of("sharding", [row for own in rows for row in own]), {})


def test_memory_is_told_by_moment_and_a_rank_has_the_highest_of_all_and_its_state_after_a_step():
    found = shown(section(*(rows_of(impl, 100.0) for impl in NAMES)))
    moments = found["moments"].rows.set_index(["way", "moment"])
    assert moments.loc[(OURS, "initialised"), ["peak_bytes", "optimizer_state_bytes"]].tolist() == [9 * GB, 0]
    assert moments.loc[(OURS, "after_step"), ["peak_bytes", "optimizer_state_bytes"]].tolist() == [40 * GB, 8 * GB]
    steps = found["ways_1"].rows.set_index("way")
    assert steps.loc[OURS, ["rank_bytes", "state_bytes"]].tolist() == [70 * GB, 24 * GB]
    assert steps.loc[PLAIN, "state_bytes"] == 32 * GB


def test_ours_sends_half_as_much_again_as_zero_which_sends_one_all_reduce():
    steps = shown(section(*(rows_of(impl, 100.0) for impl in NAMES)))["ways_1"].rows.set_index("way")
    assert steps["sent_bytes"].to_dict() == {PLAIN: 8 * GB, OURS: 12 * GB, TORCHS: 12 * GB}
    assert steps.loc[OURS, "optimizer_phase_ms"] == pytest.approx(10.0)


def test_an_optimizer_that_does_not_fit_is_no_side_of_a_comparison():
    plain = failed(**{**step("adamw", 1.0), "status": "oom", "median_ms": None, "samples_ms": None})
    found = section([plain], rows_of("sharded", 100.0))
    assert found.changes == []
    assert "variants with results" in found.answer
    assert shown(found)["ways_1"].rows["verdict"].isna().all()


def test_weights_further_apart_than_rounding_do_not_agree_and_the_faster_is_a_change():
    found = section(rows_of("adamw", 100.0), rows_of("sharded", 80.0, 1.0), rows_of("torch_zero", 90.0))
    agree = shown(found)["ways_1"].rows.set_index("way")["weights_agree"]
    assert agree.to_dict() == {PLAIN: "yes", OURS: "no", TORCHS: "yes"}
    [change] = found.changes
    assert OURS in change.what
    assert (change.before, change.after) == ("100 ms, 70.0 GB", "80.0 ms, 70.0 GB")
