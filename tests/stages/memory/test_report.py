import pandas as pd
import pytest

from pipeline.formulas.checkpointing import blocks_run_again
from pipeline.report.frame import matching
from pipeline.stages.memory.report import build

from ..frames import shown
from ..published import sound

PLAIN_STEP = {"mode": "train_step", "attention": "eager", "checkpoint_every": 0, "num_layers": 0}
BF16 = PLAIN_STEP | {"precision": "bf16", "context_length": 1024}


@pytest.fixture
def rows():
    """Return an H200's rows: plain attention is out of memory at context 2,048, and one size sets num_layers."""
    return sound("memory")


def parts(rows):
    return shown(build(rows, {}))


def test_kinds_add_up_to_the_peak_and_to_its_timeline(rows):
    step = matching(rows, BF16)
    found, peak_bytes = build(step, {}), step.loc[step["step"] == 2, "peak_bytes"].max()
    assert peak_bytes != step.loc[step["step"] == 1, "peak_bytes"].max()
    assert 1e9 * shown(found)["composition"].drawn["gb"].sum() == pytest.approx(peak_bytes)
    assert f"peaks at {peak_bytes / 1e9:.1f} GB" in found.answer
    by_kind = shown(found)["timelines"].drawn.pivot_table("gb", "events", "category")
    assert by_kind["total"].tolist() == pytest.approx(by_kind.drop(columns="total").sum(axis=1).tolist())
    assert 1e9 * by_kind["total"].max() == pytest.approx(peak_bytes)
    # Forward passes with gradients and without, and the step, at the shortest context and at that of the answer.
    ends = rows[rows["context_length"].isin([128, 1024]) & (rows["attention"] == "eager")]
    assert parts(matching(ends, {"checkpoint_every": 0}))["timelines"].drawn["setting"].nunique() == 2 * 3


def test_where_plain_attention_does_not_fit_steps_are_compared_with_the_first_fitting(rows):
    found = build(rows, {})
    table = shown(found)["variants"]
    assert set(table.rows["context_length"]) == {2048}  # the longest with several steps
    assert "OOM" in table.markdown().splitlines()[4]
    steps = table.rows.set_index(["attention", "checkpoint_every"])
    assert steps["verdict"].isna().tolist() == [True, True] + 6 * [False]
    assert steps["gpus"].tolist()[1] == "1"  # the base, with only its own GPU
    assert set(steps["gpus"].tolist()[1:]) == {"1", "2"}
    [change] = found.changes
    ms = steps["median_ms"]
    assert change.judged["ratio"] == pytest.approx(ms["eager", 1] / ms["flash", 0])
    assert "GPU" in change.where
    [change] = build(rows.assign(cards=rows["cards"].where(rows["cards"].isna(), "one")), {}).changes
    assert "GPU" not in change.where
    # The levers stage covers flash attention alone.
    assert build(rows[rows["context_length"] == 1024], {}).changes == []


def test_variants_need_a_context_where_a_step_fits_and_the_answer_avoids_checkpoints(rows):
    flash = rows[(rows["attention"] == "flash") & (rows["num_layers"] == 0)]
    values = [name for name in flash.select_dtypes("number") if name.endswith(("_bytes", "_ms"))]
    is_long = flash["context_length"] == 2048
    flash.loc[is_long, values] = float("nan")
    small = flash.assign(status=flash["status"].mask(is_long, "oom"))
    found = build(small, {})
    assert set(shown(found)["variants"].rows["context_length"]) == {1024}
    step = matching(small, BF16 | {"attention": "flash"})
    assert f"peaks at {step.loc[step['step'] == 2, 'peak_bytes'].max() / 1e9:.1f} GB" in found.answer


def test_variants_show_the_peak_before_the_update_and_can_use_another_precision(rows):
    checkpointed = parts(rows)["variants"].rows.set_index(["attention", "checkpoint_every"]).loc[("eager", 1)]
    assert checkpointed["before_update_bytes"] < checkpointed["peak_bytes"]
    several = matching(rows, {"context_length": 1024, "attention": "flash"}).assign(precision="fp32")
    for of_bf16, shown_precision in ((matching(rows, BF16), "fp32"), (rows[rows["precision"] == "bf16"], "bf16")):
        found = parts(pd.concat([of_bf16, several], ignore_index=True))["variants"].rows
        assert set(found["precision"]) == {shown_precision}


def test_peaks_and_residual_streams_match_the_formulas_and_oom_is_shown(rows):
    found = parts(rows)
    residual, table = found["residual"].rows, found["peaks"]
    assert residual["by_formula_mib"].tolist() == residual["recorded_mib"].tolist()
    of_longest = residual[residual["context_length"] == 1024]
    assert dict(zip(of_longest["precision"], of_longest["recorded_mib"], strict=True)) == {"fp32": 40, "bf16": 40}
    assert table.markdown().count("OOM") == 1
    measured = table.rows.dropna(subset="peak_bytes")
    assert measured["by_formula_bytes"].tolist() == pytest.approx(measured["peak_bytes"].tolist(), rel=0.01)


def test_allocations_of_one_line_count_together_and_a_block_lists_its_largest_tensors(rows):
    largest = rows[rows["kind"] == "largest"]
    called_twice = largest.assign(location=largest["location"] + ", called from elsewhere", rank=largest["rank"] + 0.5)
    once, twice = (parts(pd.concat([rows, *more], ignore_index=True))["largest"].rows for more in ([], [called_twice]))
    assert once["code"].iloc[0].startswith("scores = ")
    assert once["how_many"].iloc[0] == 32  # one per layer
    assert twice["how_many"].tolist() == (2 * once["how_many"]).tolist()
    block = parts(matching(rows, BF16))["block"].rows.set_index("part")["cell"]
    assert len(block) == 4 + 3
    assert block["largest, 1"] == "537 MB: attention Softmax.result, float32 [4, 32, 1024, 1024]"
    assert block["its gradients"] == "419 MB"


def test_checkpoints_by_depth_show_which_blocks_rerun_and_lower_activations(rows):
    deep = parts(rows)["depth"].rows
    for layers, found in deep.groupby("num_layers"):
        assert list(found["checkpoints"]) == ["none", "each block", "each block, recursive"]
        assert list(found["again"]) == [0, *(blocks_run_again(layers, 1, kind) for kind in ("segments", "recursive"))]
        assert found["most_activations_bytes"].is_monotonic_decreasing
        assert found["verdict"].fillna("").tolist() == ["", "slower", "slower"]


def test_steps_with_num_layers_set_lead_only_if_there_are_no_others(rows):
    assert "2.7B" in build(rows, {}).answer
    assert "small" in build(rows[rows["num_layers"] > 0], {}).answer
