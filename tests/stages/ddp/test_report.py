import pytest

from pipeline.formulas.buckets import best_bucket_bytes
from pipeline.formulas.collectives import LinearCost
from pipeline.stages.ddp.report import NAIVE, NONE, TORCH, build

from ..frames import failed, frame_of, shown, step, timed

COST = LinearCost(latency_s=40e-6, bytes_per_s=320e9)
GRADIENT_BYTES = 8 * 10**9
AGREEING = {"rank_difference": 0.0, "variant_difference": 0.001, "backend": "nccl", "gradient_bytes": GRADIENT_BYTES}
STEPS_MS = {"none": 100.0, "naive": 130.0, "overlap": 110.0}


def way(impl, median_ms, **columns):
    apart = {"rank_difference": 5.0} if impl == "none" else {}
    return step(impl, median_ms, **{**AGREEING, **apart, "all_reduces": 10, **columns})


def steps(torch_ms=120.0, **columns):
    """Return the rows of a cell: three ways without buckets, bucketed at three sizes, torch's at two."""
    by_size = [("bucketed", 1, 112.0), ("bucketed", 100, 118.0), ("bucketed", 1000, 119.0)]
    by_size += [("torch", 25, torch_ms), ("torch", 100, 1.1 * torch_ms)]
    rows = [way(impl, ms, **columns) for impl, ms in STEPS_MS.items()]
    return rows + [way(impl, ms, bucket_size_mb=mb, **columns) for impl, mb, ms in by_size]


def section(rows, collectives=True):
    named = {"world_size": 2, "nodes": 1, "impl": "torch", "placement": "in_place", "clock": "host", "backend": "nccl"}
    named |= {"timing": "burst", "collective": "all_reduce", "dtype": "fp32"}
    ms = {size: 1e3 * (COST.latency_s + size / COST.bytes_per_s) for size in (1e6, 1e7, 1e8, 1e9)}
    calls = frame_of("collectives", [timed(ms[size], size_bytes=size, **named) for size in ms])
    return build(frame_of("ddp", rows), {"collectives": calls} if collectives else {})


def test_best_bucket_uses_measured_call_costs_and_compares_fastest_with_nearest():
    [row] = shown(section(steps()))["best_bucket"].rows.to_dict("records")
    assert row["best_by_formula_mb"] == pytest.approx(best_bucket_bytes(GRADIENT_BYTES, COST) / 2**20, rel=1e-3)
    assert row["w_gb_per_s"] == pytest.approx(320, rel=1e-3)
    assert (row["fastest_mb"], row["measured_nearest_mb"], row["overhead_there_ms"]) == (1, 100, 18.0)
    assert row["beside_the_nearest"] == "faster"
    assert "best_bucket" not in shown(section(steps(), collectives=False))


def test_charts_show_time_added_within_a_cell_and_lanes_of_captured_steps():
    rows = [*steps(), *steps(precision="fp32")[1:]]
    added = shown(section(rows))["added"].drawn.set_index("way")["added_ms"]
    assert added[NAIVE] == 30.0
    assert NONE not in added
    assert added.index.is_unique  # no bars for the cell without a step to compare with
    captured = {"phase": "captured_step", "clock": "torch.profiler", "computation_ms": 100.0}
    lanes = {"computation_busy_pct": [100] * 160, "communication_busy_pct": [0] * 80 + [50] * 80}

    def drawn(**spans_ms):
        rows = [way(name, 1.0, span_ms=span_ms, **captured, **lanes) for name, span_ms in spans_ms.items()]
        return shown(section([*steps(), *rows]))["capture"].drawn

    both = drawn(naive=133.0, overlap=112.0)
    assert 130 < both["at_ms"].max() < 133
    assert both[both["kind"] == "communication"].groupby("way")["busy_pct"].mean().tolist() == [25.0, 25.0]
    assert set(drawn(naive=133.0, overlap=114.0)["way"]) == {NAIVE}  # profiling slowed the other down


def test_tables_keep_the_fastest_bucket_size_torchs_default_and_failed_outcomes():
    table = shown(section([*steps(), failed(**{**way("flat", 1.0), "status": "oom", "median_ms": None})]))["ways_1"]
    [flat] = [line for line in table.markdown().splitlines() if line.startswith("| flat ")]
    assert "OOM" in flat
    agree = table.rows.set_index("way")["weights_agree"].to_dict()
    assert agree.pop(NONE) == "no"
    assert set(agree.values()) == {"yes"}
    found = shown(section(steps()))
    assert {"bucketed 1 MiB", TORCH} <= set(found["ways_1"].rows["way"])
    assert "bucketed 100 MiB" not in set(found["ways_1"].rows["way"])
    beside_naive = found["beside_naive"].rows.set_index("way")["ratio"]
    assert beside_naive["overlap"] == pytest.approx(130 / 110)
    assert {"bucketed 1 MiB", "bucketed 100 MiB", "bucketed 1000 MiB"} <= set(beside_naive.index)


def test_the_answer_avoids_unstable_steps_and_works_if_torch_is_fastest_or_missing():
    for status, fastest in (("ok", "overlap"), ("unstable", "bucketed 1 MiB")):
        rows = [row | {"status": status} if row["impl"] == "overlap" else row for row in steps()]
        assert f", {fastest}, and " in section(rows).answer
    of_others = [row | {"status": "unstable"} if row["impl"] not in ("torch", "none") else row for row in steps()]
    rows = [row | {"status": "unstable"} if row.get("bucket_size_mb") == 25 else row for row in of_others]
    assert f"torch's, {TORCH}: " in section(rows).answer  # ours has no stable step, so torch's unstable ones count too
    slower = section(steps(torch_ms=90.0)).answer
    assert (f", {TORCH}: ours is 0.8" in slower, "(slower)" in slower) == (True, True)
    assert "variants with results" in section([row for row in steps() if row["impl"] != "torch"]).answer


@pytest.mark.parametrize(("factor", "sizes"), [(0.8, ["100"]), (1.2, [])])
def test_a_faster_bucket_size_for_torch_is_a_suggested_change(factor, sizes):
    rows = [row for row in steps() if (row["impl"], row.get("bucket_size_mb")) != ("torch", 100)]
    found = section([*rows, way("torch", factor * 120.0, bucket_size_mb=100)])
    assert [change.what.rpartition("=")[2] for change in found.changes] == sizes
