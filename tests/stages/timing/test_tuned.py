import pandas as pd
import pytest

from pipeline.report.tables import MAX_COLUMNS
from pipeline.stages.timing.report import section
from pipeline.stages.timing.report.tuned import tuned_steps

BEST = "fused+sdpa+compile+graph"


def lever(levers, median_ms, size="large", context_length=1024, status="ok", **more):
    cell = {"size": size, "context_length": context_length, "levers": levers, "status": status, "combinations": "all"}
    same = {"setting_batch_size": 4, "setting_vocab_size": 10_000, "peak_bytes": int(1e9 * median_ms)}
    same["power_capped"] = median_ms < 100
    return {
        **cell,
        **same,
        "median_ms": median_ms,
        "tokens_per_s": 4 * context_length / median_ms * 1e3,
        "mfu_pct": 45.0,
        **more,
    }


LEVERS = pd.DataFrame(
    [
        lever("eager", 100.0),
        lever("eager_again", 30.0),
        lever("eager", 135.0, combinations="graph"),
        lever(BEST, 40.0),
        lever(BEST + "+bf16_weights", 20.0),
        lever("fused+sdpa", 10.0, status="wrong"),
        lever("fused", 10.0, status="unstable"),
        lever("compile", 5.0, context_length=512),
        lever("compile", 5.0, setting_batch_size=8),
        lever("eager", 200.0, size="small"),
        lever("graph", 300.0, size="small"),
    ]
)


def step(size, precision="bf16"):
    same = {"context_length": 1024, "batch_size": 4, "setting_vocab_size": 10_000}
    return {"size": size, "precision": precision, **same}


def test_the_fastest_combination_that_keeps_fp32_weights_is_taken_at_the_same_batch_and_context():
    steps = pd.DataFrame([step("xl"), step("large"), step("small")], index=[7, 3, 5])
    found = tuned_steps(steps, LEVERS)
    assert found.loc[3].to_dict() == {
        "levers": BEST,
        "tokens_per_s": pytest.approx(4 * 1024 / 0.04),
        "mfu_pct": 45.0,
        "gain": pytest.approx(2.5),
        "peak_bytes": 40e9,
        "power_capped": True,
        "is_wrong": False,
    }
    assert found.loc[[7, 5], "levers"].isna().all()  # not measured; nothing faster than eager
    assert not found["is_wrong"].any()


def test_without_a_stable_combination_nothing_is_tuned():
    found = tuned_steps(pd.DataFrame([step("large")]), LEVERS.assign(status="unstable"))
    assert found[["levers", "tokens_per_s"]].isna().all(axis=None)


def test_levers_are_of_bf16_steps_only():
    found = tuned_steps(pd.DataFrame([step("large", "fp32")]), LEVERS)
    assert found[["levers", "tokens_per_s"]].isna().all(axis=None)


def test_where_only_wrong_combinations_are_left_the_column_says_so(make_rows):
    wrong = LEVERS[LEVERS["levers"] != BEST]
    assert tuned_steps(pd.DataFrame([step("large")]), wrong)["is_wrong"].all()
    built = section.build(make_rows("h200"), {"ceilings": pd.DataFrame({"reason": []}), "levers": wrong})
    cells = built.headline[0].cells
    assert "; wrong: its loss is then too far from the eager one." in built.headline[0].title
    assert list(cells.loc[cells["model"].str.startswith("large"), "tuned tokens/s (MFU, gain)"]) == ["wrong"]


def test_the_first_screen_has_a_column_of_tuned_steps_where_they_were_measured(make_rows):
    rows = make_rows("h200").assign(gpu_idle_pct=10.0, limited_by="gpu")  # all columns that there are
    built = section.build(rows, {"ceilings": pd.DataFrame({"reason": []}), "levers": LEVERS})
    table = built.headline[0]
    cells = table.cells.set_index(table.cells["model"].str.split().str[0])
    tuned = cells[["tuned tokens/s (MFU, gain)", "tuned peak GB"]]
    assert list(tuned.loc["large"]) == ["102,400 (45%, 2.50×)", "40.0"]
    assert set(tuned.drop("large").stack()) == {"–"}
    assert len(table.cells.columns) == MAX_COLUMNS
    assert " tuned: with fused AdamW, SDPA, torch.compile and a CUDA graph; gain: times as fast" in table.title
    large = next(model for model in built.models if model["size"] == "large")
    assert (large["tuned_with"], large["tuned_peak_bytes"], large["tuned_power_capped"]) == (BEST, 40e9, True)
    without = section.build(rows, {"ceilings": pd.DataFrame({"reason": []}), "levers": pd.DataFrame()}).headline[0]
    assert not any("tuned" in name for name in without.cells)
    assert "tuned" not in without.title
