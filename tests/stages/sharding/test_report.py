from pipeline.stages.sharding.report import OURS, PLAIN, TORCHS, build

from ..frames import frame_of, other, shown, step

GB = 10**9
STATE_GB = {"adamw": 16, "sharded": 8, "torch_zero": 8}
NAMES = {"adamw": PLAIN, "sharded": OURS, "torch_zero": TORCHS}


def rows_of(impl, median_ms, weight_difference=0.0):
    moments = {"initialised": (0, 0, 9), "before_step": (8, STATE_GB[impl], 70), "after_step": (8, STATE_GB[impl], 40)}
    memory = [
        other(impl, "memory", moment=moment, kind=kind, measured_bytes=size * GB)
        for moment, (gradients, state, peak) in moments.items()
        for kind, size in {"parameters": 8, "gradients": gradients, "optimizer_state": state, "peak": peak}.items()
    ]
    sent = {"allreduce": 8 * GB, "broadcast": 0 if impl == "adamw" else 4 * GB}
    traffic = [other(impl, "traffic", collective=name, sent_bytes=size) for name, size in sent.items()]
    optimizer = step(impl, median_ms / 10, phase="optimizer")
    differences = {"rank_difference": 0.0, "weight_difference": weight_difference}
    return [row | differences for row in (step(impl, median_ms), optimizer, *memory, *traffic)]


def section(*rows):
    return build(frame_of("sharding", [row for own in rows for row in own]), {})


def test_tables_show_memory_by_moment_and_each_optimizers_peak_state_and_bytes_sent():
    found = shown(section(*(rows_of(impl, 100.0) for impl in NAMES)))
    moments = found["moments"].rows.set_index(["way", "moment"])[["peak_bytes", "optimizer_state_bytes"]]
    assert moments.loc[(OURS, "initialised")].tolist() == [9 * GB, 0]
    assert moments.loc[(OURS, "after_step")].tolist() == [40 * GB, 8 * GB]
    steps = found["ways_1"].rows.set_index("way")
    assert steps.loc[OURS, ["rank_bytes", "state_bytes", "optimizer_phase_ms"]].tolist() == [70 * GB, 24 * GB, 10.0]
    assert steps.loc[PLAIN, "state_bytes"] == 32 * GB
    assert steps["sent_bytes"].to_dict() == {PLAIN: 8 * GB, OURS: 12 * GB, TORCHS: 12 * GB}


def test_weights_off_by_more_than_rounding_disagree_and_the_faster_way_is_a_change():
    found = section(rows_of("adamw", 100.0), rows_of("sharded", 80.0, 1.0), rows_of("torch_zero", 90.0))
    agree = shown(found)["ways_1"].rows.set_index("way")["weights_agree"]
    assert agree.to_dict() == {PLAIN: "yes", OURS: "no", TORCHS: "yes"}
    [change] = found.changes
    assert OURS in change.what
    assert (change.before, change.after) == ("100 ms, 70.0 GB", "80.0 ms, 70.0 GB")
