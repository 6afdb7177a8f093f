import pandas as pd
import pytest

from pipeline.formulas.checkpointing import blocks_run_again
from pipeline.report.frame import alike
from pipeline.stages.memory.report import build

from ..frames import shown
from ..published import sound

PLAIN_STEP = {"mode": "train_step", "attention": "eager", "checkpoint_every": 0, "num_layers": 0}
BF16 = PLAIN_STEP | {"precision": "bf16", "context_length": 1024}


@pytest.fixture
def rows():
    """An H200's: plain attention runs out of memory at context 2,048, and one size has chosen numbers of blocks."""
    return sound("memory")


def parts(rows):
    return shown(build(rows, {}))


def test_a_peak_and_its_timeline_are_made_up_of_their_kinds(rows):
    step = alike(rows, BF16)
    found, peak_bytes = build(step, {}), step.loc[step["step"] == 2, "peak_bytes"].max()
    assert peak_bytes != step.loc[step["step"] == 1, "peak_bytes"].max()
    assert 1e9 * shown(found)["composition"].drawn["gb"].sum() == pytest.approx(peak_bytes)
    assert f"peaks at {peak_bytes / 1e9:.1f} GB" in found.answer
    by_kind = shown(found)["timelines"].drawn.pivot_table("gb", "events", "category")
    assert by_kind["total"].tolist() == pytest.approx(by_kind.drop(columns="total").sum(axis=1).tolist())
    assert 1e9 * by_kind["total"].max() == pytest.approx(peak_bytes)
    # Forward passes with gradients and without, and the step, at the shortest context and at that of the answer.
    ends = rows[rows["context_length"].isin([128, 1024]) & (rows["attention"] == "eager")]
    assert parts(alike(ends, {"checkpoint_every": 0}))["timelines"].drawn["setting"].nunique() == 2 * 3


def test_where_plain_attention_does_not_fit_steps_are_compared_with_the_first_that_does(rows):
    found = build(rows, {})
    table = shown(found)["variants"]
    assert set(table.rows["context_length"]) == {2048}  # the longest that has several
    assert "OOM" in table.markdown().splitlines()[4]
    steps = table.rows.set_index(["attention", "checkpoint_every"])
    assert steps["verdict"].isna().tolist() == [True, True] + 6 * [False]
    assert steps["gpus"].tolist()[1] == "1"  # by first use
    assert set(steps["gpus"].tolist()[1:]) == {"1", "2"}
    [change] = found.changes
    ms = steps["median_ms"]
    assert change.judged["ratio"] == pytest.approx(ms["eager", 1] / ms["flash", 0])
    assert "GPU" in change.where
    [change] = build(rows.assign(cards=rows["cards"].where(rows["cards"].isna(), "one")), {}).changes
    assert "GPU" not in change.where
    # Of flash attention alone the levers tell.
    assert build(rows[rows["context_length"] == 1024], {}).changes == []


def test_steps_are_compared_at_a_context_at_which_one_fits_and_the_answer_is_rather_without_checkpoints(rows):
    flash = rows[(rows["attention"] == "flash") & (rows["num_layers"] == 0)]
    values = [name for name in flash.select_dtypes("number") if name.endswith(("_bytes", "_ms"))]
    is_long = flash["context_length"] == 2048
    flash.loc[is_long, values] = float("nan")
    small = flash.assign(status=flash["status"].mask(is_long, "oom"))
    found = build(small, {})
    assert set(shown(found)["variants"].rows["context_length"]) == {1024}
    step = alike(small, BF16 | {"attention": "flash"})
    assert f"peaks at {step.loc[step['step'] == 2, 'peak_bytes'].max() / 1e9:.1f} GB" in found.answer


def test_the_update_is_no_part_of_the_peak_before_it_and_another_precision_has_steps_where_the_lead_has_but_one(rows):
    checkpointed = parts(rows)["variants"].rows.set_index(["attention", "checkpoint_every"]).loc[("eager", 1)]
    assert checkpointed["before_update_bytes"] < checkpointed["peak_bytes"]
    several = alike(rows, {"context_length": 1024, "attention": "flash"}).assign(precision="fp32")
    for of_bf16, shown_precision in ((alike(rows, BF16), "fp32"), (rows[rows["precision"] == "bf16"], "bf16")):
        found = parts(pd.concat([of_bf16, several], ignore_index=True))["variants"].rows
        assert set(found["precision"]) == {shown_precision}


def test_peaks_and_residual_streams_of_both_precisions_stand_beside_the_formula_and_what_did_not_fit_is_told(rows):
    found = parts(rows)
    residual, table = found["residual"].rows, found["peaks"]
    assert residual["by_formula_mib"].tolist() == residual["recorded_mib"].tolist()
    of_longest = residual[residual["context_length"] == 1024]
    assert dict(zip(of_longest["precision"], of_longest["recorded_mib"], strict=True)) == {"fp32": 40, "bf16": 40}
    assert table.markdown().count("OOM") == 1
    measured = table.rows.dropna(subset="peak_bytes")
    assert measured["by_formula_bytes"].tolist() == pytest.approx(measured["peak_bytes"].tolist(), rel=0.01)


def test_allocations_of_one_line_count_together_and_a_block_tells_its_largest_tensors_and_sums(rows):
    largest = rows[rows["kind"] == "largest"]
    called_twice = largest.assign(location=largest["location"] + ", called from elsewhere", rank=largest["rank"] + 0.5)
    once, twice = (parts(pd.concat([rows, *more], ignore_index=True))["largest"].rows for more in ([], [called_twice]))
    assert once["code"].iloc[0].startswith("scores = ")
    assert once["how_many"].iloc[0] == 32  # as there are layers
    assert twice["how_many"].tolist() == (2 * once["how_many"]).tolist()
    block = parts(alike(rows, BF16))["block"].rows.set_index("part")["cell"]
    assert len(block) == 4 + 3
    assert block["largest, 1"] == "537 MB: attention Softmax.result, float32 [4, 32, 1024, 1024]"
    assert block["its gradients"] == "419 MB"


def test_checkpoints_by_depth_tell_what_runs_again_and_what_they_lower(rows):
    deep = parts(rows)["depth"].rows
    for layers, found in deep.groupby("num_layers"):
        assert list(found["checkpoints"]) == ["none", "each block", "each block, recursive"]
        assert list(found["again"]) == [0, *(blocks_run_again(layers, 1, kind) for kind in ("segments", "recursive"))]
        assert found["most_activations_bytes"].is_monotonic_decreasing
        assert found["verdict"].fillna("").tolist() == ["", "slower", "slower"]


def test_steps_of_a_chosen_number_of_blocks_speak_only_where_nothing_else_does(rows):
    assert "2.7B" in build(rows, {}).answer
    assert "small" in build(rows[rows["num_layers"] > 0], {}).answer
