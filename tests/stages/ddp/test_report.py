import pandas as pd
import pytest

from pipeline.formulas.buckets import best_bucket_bytes
from pipeline.formulas.collectives import LinearCost
from pipeline.stages.ddp.report import NONE, TORCH, build

from ..section_parts import faults, parts
from .conftest import BANDWIDTH, CALL_S, GRADIENT_BYTES

NO_ALLREDUCE = pd.DataFrame()


def scaled(rows, factor, mask):
    """Return rows with all times of some multiplied."""
    rows = rows.copy()
    times = [name for name in rows.select_dtypes("number") if name.endswith("_ms")]
    rows[times] = rows[times].mask(mask, factor * rows[times])
    several = rows.loc[mask, "samples_of_repeats"]
    rows.loc[mask, "samples_of_repeats"] = several.map(
        lambda repeats: [[factor * ms for ms in each] for each in repeats], na_action="ignore"
    )
    return rows


@pytest.mark.parametrize("name", ["h200", "small_gpu", "smoke"])
def test_the_section_is_whole_on_whatever_was_measured(request, allreduce, name, tmp_path):
    section = build(request.getfixturevalue(name), {"collectives": allreduce})
    assert faults(section, tmp_path) == {}


def test_without_the_stage_of_all_reduces_only_the_formula_is_missing(h200, allreduce, tmp_path):
    with_cost, without = (build(h200, beside) for beside in ({"collectives": allreduce}, {}))
    assert faults(without, tmp_path) == {}
    empty = {name for name, part in parts(without).items() if part.rows.empty}
    assert empty == {"best_bucket", "sweep"}
    assert not any(part.rows.empty for part in parts(with_cost).values())


def test_the_overhead_by_formula_has_the_cost_of_this_machines_calls_and_the_real_number_of_them(h200, allreduce):
    found = parts(build(h200, {"collectives": allreduce}))
    drawn = found["sweep"].rows
    for row in drawn[drawn["kind"] == "predicted"].to_dict("records"):
        expected_s = row["all_reduces"] * CALL_S + GRADIENT_BYTES / row["all_reduces"] / BANDWIDTH
        assert row["formula_ms"] == pytest.approx(1e3 * expected_s, rel=1e-3)
    best = best_bucket_bytes(GRADIENT_BYTES, LinearCost(CALL_S, BANDWIDTH)) / 2**20
    assert list(found["best_bucket"].rows["best_mb"]) == pytest.approx([best, best], rel=1e-3)


def test_the_best_size_measured_stands_beside_the_measured_one_nearest_to_the_formulas(h200, allreduce):
    slow = (h200["impl"] == "bucketed") & (h200["bucket_size_mb"] != 1)
    rows = parts(build(scaled(h200, 3.0, slow), {"collectives": allreduce}))["best_bucket"].rows
    assert list(rows["bucket_size_mb"]) == [1, 1]
    assert list(rows["near_mb"]) == [100, 100]
    assert (rows["ratio"] > 1).all()


def test_what_averaging_adds_is_the_step_beyond_one_without_communication_of_the_same_cell(h200):
    steps = parts(build(h200, {}))["added"].rows
    whole = h200[(h200["phase"] == "train_step") & (h200["clock"] == "host")]
    for precision, own in steps.groupby("precision"):
        none_ms = whole[(whole["precision"] == precision) & (whole["impl"] == "none")]["median_ms"].item()
        assert (own["added_ms"] + none_ms).tolist() == pytest.approx(own["median_ms"].tolist())
    assert parts(build(h200[h200["impl"] != "none"], {}))["added"].is_empty


def test_a_variant_without_memory_is_shown_by_its_outcome(small_gpu):
    lines = parts(build(small_gpu, {}))["ways_1"].markdown().splitlines()
    [flat] = [line for line in lines if line.startswith("| flat ")]
    assert "OOM" in flat


def test_weights_that_no_communication_brought_together_do_not_agree(h200):
    agree = parts(build(h200, {}))["beside_naive"].rows.set_index("way")["agree"]
    assert agree.pop(NONE) == "no"
    assert set(agree) == {"yes"}


def test_the_answer_does_not_rest_on_an_unstable_step(h200):
    quick = h200["impl"] == "overlap"
    rows = scaled(h200, 0.5, quick)
    assert "overlap" in build(rows, {}).answer
    rows["status"] = rows["status"].mask(quick, "unstable")
    assert "overlap" not in build(rows, {}).answer


def test_the_answer_is_whole_where_torchs_own_is_the_fastest(h200):
    is_torchs = (h200["impl"] == "torch") & (h200["bucket_size_mb"] == 25)
    answer = build(scaled(h200, 0.5, is_torchs), {}).answer
    assert "nan" not in answer
    assert "None" not in answer


@pytest.mark.parametrize(("factor", "sizes"), [(0.8, ["100"]), (1.2, [])])
def test_another_bucket_size_for_torch_is_a_change_where_it_is_faster(h200, factor, sizes):
    torch = h200["impl"].eq("torch")
    alike = scaled(h200, 1.0, torch)
    base = alike[torch & (alike["bucket_size_mb"] == 25)]
    others = [base.assign(bucket_size_mb=float(size)) for size in (1, 25)]
    rows = pd.concat(
        [alike[~torch], *others, scaled(base.assign(bucket_size_mb=100.0), factor, base["impl"].eq("torch"))]
    )
    changes = build(rows.reset_index(drop=True), {}).changes
    assert [change.what.rpartition("=")[2] for change in changes] == sizes
    assert TORCH in set(parts(build(rows.reset_index(drop=True), {}))["ways_1"].rows["way"])


def test_without_overlap_the_captured_lanes_take_turns(h200):
    found = parts(build(h200, {}))
    hidden = found["captures"].rows.set_index("way")["hidden_pct"]
    assert hidden["overlap"] > hidden["naive"] == 0
    assert set(found["capture"].rows["way"]) == {"naive", "overlap"}
