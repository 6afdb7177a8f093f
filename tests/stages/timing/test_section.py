import re

import numpy as np
import pandas as pd
import pytest

from pipeline.report.baselines import COLUMNS
from pipeline.report.outcomes import IDLE_PCT
from pipeline.report.section import count, ratio
from pipeline.report.tables import significant
from pipeline.stages.timing.report import baselines, section, steps

from ..sections import (
    built,
    contents,
    drawn_figures,
    gaps,
    linked_figures,
)

ALL = ("h200", "laptop", "smoke")
TIMES = ["median_ms", "q1_ms", "q3_ms", "mean_ms"]
PROBLEMS = [
    *("benchmarking_script (b)", "benchmarking_script (c)"),
    *("benchmarking_mixed_precision (c)", "torch_compile (b)"),
]


text_of = built(section.build, "timing")


@pytest.fixture(scope="module")
def rendered(make_rows, tmp_path_factory):
    folders = {name: tmp_path_factory.mktemp(name) for name in ALL}
    return {name: (text_of(make_rows(name), folder), folder) for name, folder in folders.items()}


@pytest.fixture
def build(tmp_path, undrawn):
    return lambda rows: text_of(rows, tmp_path)


def scaled(rows, factor, mask):
    """Scale the times of some rows."""
    rows = rows.astype(dict.fromkeys(TIMES, float))
    rows.loc[mask, TIMES] *= factor
    return rows


def actions(rows):
    return [action.what for action in section.build(rows).actions]


@pytest.mark.parametrize("name", ALL)
def test_the_section_has_no_gaps_and_all_its_figures(rendered, name):
    text, folder = rendered[name]
    assert gaps(text) == []
    assert linked_figures(text, "timing") == drawn_figures(folder)
    assert text.count("\n") < 90


def test_rendering_twice_gives_the_same_bytes(make_rows, rendered, tmp_path):
    assert text_of(make_rows("h200"), tmp_path) == rendered["h200"][0]
    assert contents(tmp_path) == contents(rendered["h200"][1])


def test_every_problem_of_the_assignment_is_answered(make_rows):
    assert [problem.name for problem in section.build(make_rows("h200")).problems] == PROBLEMS


def test_the_first_screen_shows_each_model_at_the_longest_context_that_all_have(make_rows):
    table, *_ = section.build(make_rows("h200")).headline
    assert [name.split(" ")[0] for name in table.cells["model"]] == ["small", "medium", "large", "xl", "2.7B"]
    assert table.cells["model"][0] == "small (129M, 12 layers of width 768)"
    assert "context 1024" in table.title
    assert "bf16" in table.title
    assert "GPU idle" not in table.cells


def with_busy(rows, idle_pct):
    """Add what the GPU did: idle so many per cent, by context length."""
    idle = rows["context_length"].map(idle_pct)
    limits = np.where(idle >= IDLE_PCT, "host", "gpu")
    return rows.assign(gpu_idle_pct=idle, gpu_busy_ms=rows["median_ms"] * (1 - idle / 100), limited_by=limits)


def test_where_the_gpu_waits_at_short_contexts_filling_it_comes_first(make_rows):
    rows = with_busy(make_rows("h200"), {128: 60.0, 256: 40.0, 512: 15.0, 1024: 5.0})
    first = section.build(rows).actions[0]
    assert first.what == "**Fill the GPU: more tokens a step.**"
    assert "The GPU idles 60% of a step of " in first.why
    assert "; at context 1024 it idles 5.0%." in first.why
    doubtful = rows.assign(status=rows["status"].where(rows["context_length"] > 128, "unstable"))
    assert "The GPU idles 40% of a step of " in section.build(doubtful).actions[0].why
    busy = with_busy(make_rows("h200"), {128: 9.0, 256: 8.0, 512: 7.0, 1024: 5.0})
    assert "**Fill the GPU: more tokens a step.**" not in actions(busy)


def test_an_idle_step_with_no_fuller_one_beside_it_gives_way_to_one_that_has(make_rows):
    rows = with_busy(make_rows("h200"), {128: 40.0, 256: 30.0, 512: 15.0, 1024: 60.0})
    assert "The GPU idles 40% of a step of " in section.build(rows).actions[0].why


def test_a_larger_batch_is_advised_by_what_it_trains_a_second(make_rows):
    rows = make_rows("h200")
    same = (rows["size"] == "small") & (rows["context_length"] == 1024) & (rows["warmup_steps"] == 5)
    larger = rows[same].assign(batch_size=16, tokens_per_s=2 * rows["tokens_per_s"])
    both = pd.concat([rows, larger], ignore_index=True)
    (action,) = [action for action in section.build(both).actions if action.what == "**Train with a larger batch.**"]
    assert action.why.startswith("At context 1024 small trains ")
    assert " tokens/s with batch 16, " in action.why
    assert action.why.endswith(" with batch 4 (2.00×).")
    assert section.build(both).headline[0].cells.equals(section.build(rows).headline[0].cells)
    unchanged = pd.concat([rows, larger.assign(tokens_per_s=larger["tokens_per_s"] / 2)], ignore_index=True)
    assert "**Train with a larger batch.**" not in actions(unchanged)


def test_the_first_screen_holds_all_that_newer_records_tell(make_rows, tmp_path):
    rows = with_busy(make_rows("h200"), {128: 60.0, 256: 40.0, 512: 30.0, 1024: 25.0})
    text = text_of(rows, tmp_path)
    shown = ("model", "tokens/s", "TFLOP/s (MFU)", "× tf32", "limited by (GPU idle)", "peak GB")
    assert "| " + " | ".join(shown) + " |" in " ".join(text.split())
    assert "| host (25%) " in text
    busy = with_busy(make_rows("h200"), {128: 60.0, 256: 40.0, 512: 30.0, 1024: 7.8})
    assert set(section.build(busy).headline[0].cells["limited by (GPU idle)"]) == {"GPU (7.8%)"}


def test_the_first_screen_compares_with_tf32_where_it_has_that_at_its_context_else_with_fp32(make_rows):
    rows = make_rows("h200")
    ratios = steps.precision_gains(rows, "bf16", "tf32").set_index(["size", "context_length"])["ratio"]
    shown = section.build(rows).headline[0]
    assert (
        shown.cells.set_index("model")["× tf32"]["small (129M, 12 layers of width 768)"]
        == f"{ratios['small', 1024]:.2f}"
    )
    assert "× fp32" not in shown.cells
    assert " × tf32: times as fast as in fp32 with TF32, where both are stable." in shown.title
    short = section.build(rows[(rows["precision"] != "tf32") | (rows["context_length"] < 1024)]).headline[0]
    assert "× tf32" not in short.cells
    assert "× fp32" in short.cells


@pytest.mark.parametrize(("mode", "what"), [("compiled", "**Use `torch.compile`.**"), ("eager", "**Train in bf16.**")])
def test_what_gains_nothing_is_not_advised(make_rows, mode, what):
    rows = make_rows("h200")
    assert what in actions(scaled(rows, 0.5, (rows["mode"] == mode) & (rows["precision"] == "bf16")))
    assert what not in actions(scaled(rows, 20.0, (rows["mode"] == mode) & (rows["precision"] == "bf16")))


def test_compiling_is_advised_with_the_gpu_s_idling_and_what_it_takes_in_the_same_precision(make_rows):
    rows = with_busy(make_rows("h200"), {128: 60.0, 256: 40.0, 512: 15.0, 1024: 5.0})
    rows = scaled(rows, 0.5, (rows["mode"] == "compiled") & (rows["phase"] != "compile"))
    (advice,) = [action for action in section.build(rows).actions if "torch.compile" in action.what]
    assert " in bf16, of which the GPU idles 40%, takes " in advice.why
    times = steps.compile_times(rows).query("precision == 'bf16'")
    best = times.loc[times["ratio"].idxmax()]
    assert f"Compiling {best['size']} takes " in advice.why
    assert advice.why.endswith(f", paid back after {count(best['payback_steps'])} steps.")


def test_a_gain_within_the_quartiles_is_not_advised(make_rows):
    rows = scaled(make_rows("h200"), 0.5, make_rows("h200")["mode"] == "compiled")
    wide = rows["mode"] == "compiled"
    rows.loc[wide, "q3_ms"] *= 100
    assert "**Use `torch.compile`.**" not in actions(rows)


def test_compiling_is_paid_back_after_its_time_over_the_time_saved(make_rows):
    times = steps.compile_times(make_rows("h200"))
    saved = times["base_ms"] - times["other_ms"]
    paid = times["payback_steps"].notna()
    assert paid.any()
    assert (saved[paid] > 0).all()
    assert list(times["payback_steps"][paid] * saved[paid]) == pytest.approx(list(times["compile_ms"][paid]))


def test_a_cold_start_is_the_first_step_of_the_phases_together(make_rows):
    first = steps.first_steps(make_rows("h200")).groupby("warmup_steps")["first"].median()
    assert first[0] > 10
    assert first[5] == pytest.approx(1, abs=0.05)


def test_what_ran_out_of_memory_is_counted_and_no_zero(make_rows, build):
    rows = make_rows("h200")
    shown = steps.warm(rows)
    assert f"{(shown['status'] == 'oom').sum()} of {len(shown)} figures are missing" in build(rows)
    assert "CUDA out of memory" in build(rows)


def test_nothing_measured_gives_the_reason_alone(make_rows, build):
    rows = make_rows("laptop")
    text = build(rows[rows["precision"] == "tf32"])
    assert "**Nothing was measured: no CUDA GPU.**" in text


def test_a_cpu_is_told_nothing_of_gpus(rendered):
    assert "GPU" not in rendered["laptop"][0]


def test_others_stand_beside_ours_for_the_same_thing_only(make_rows):
    pairs = baselines.pairs(make_rows("h200"))
    assert {*COLUMNS} <= {*pairs}
    assert len(pairs) > 50
    assert pairs[["theirs", "ours"]].gt(0).all(axis=None)
    assert baselines.pairs(make_rows("smoke")).empty


def test_what_a_product_alone_reaches_is_named_with_the_highest_rate_and_drawn(make_rows, tmp_path):
    products = pd.DataFrame(
        {"what": "matmul", "dtype": ["bf16", "bf16", "fp8"], "tflops_per_s": [700.0, 742.0, 1500.0]}
    )
    _, figure, finding = section.build(make_rows("h200"), {"ceilings": products}).headline
    assert ", bf16); a matrix product alone reaches 742" in finding
    texts = [text.get_text() for text in figure.drawing.axes[0].texts]
    assert {"bf16 data sheet", "fp32 data sheet", "bf16 matmul"} <= set(texts)
    assert "fp32 matmul" not in texts
    assert "alone" not in section.build(make_rows("h200"), {"ceilings": pd.DataFrame({"reason": []})}).headline[2]


def test_the_first_screen_says_why_its_context_is_not_the_longest(make_rows):
    rows = make_rows("h200")
    assert "context 1024. " in section.build(rows).headline[0].title
    longer = rows[(rows["context_length"] == 1024) & (rows["size"] == "small")].assign(context_length=2048)
    table, *_ = section.build(pd.concat([rows, longer], ignore_index=True)).headline
    assert "context 1024, the longest that all of these fit." in table.title


def test_a_model_named_after_a_smaller_one_says_why_it_is_larger(make_rows):
    models = list(section.build(make_rows("h200")).headline[0].cells["model"])
    assert "2.7B (3.41B with SwiGLU, 32 layers of width 2,560)" in models
    assert "xl (2.00B, 48 layers of width 1,600)" in models


def test_an_unstable_step_is_marked_on_the_first_screen(make_rows):
    rows = make_rows("h200")
    step = (rows["size"] == "xl") & (rows["context_length"] == 1024) & (rows["precision"] == "bf16")
    rows.loc[step, "status"] = "unstable"
    cells = section.build(rows).headline[0].cells.set_index("model")["tokens/s"]
    assert cells["xl (2.00B, 48 layers of width 1,600)"].endswith(" (unstable)")
    assert not cells["large (969M, 36 layers of width 1,280)"].endswith(" (unstable)")


def test_a_step_that_the_host_limits_says_nothing_of_a_precision(make_rows):
    rows = with_busy(make_rows("h200"), {128: 60.0, 256: 9.0, 512: 5.0, 1024: 5.0})
    slow = (rows["size"] == "small") & (rows["context_length"] == 128) & (rows["precision"] == "bf16")
    rows = scaled(rows, 50.0, slow)
    rows.loc[rows["size"] == "small", "status"] = "ok"
    (advice,) = [action for action in section.build(rows).actions if "Train in bf16" in action.what]
    assert "; where the GPU is the limit, small at context 256 gets slower than in tf32 (0.9" in advice.why
    assert advice.why.endswith("The peaks are 990, 494 and 67.0 TFLOP/s.")
    assert "of which the GPU idles" not in advice.why


def test_the_advised_precision_is_beside_fp32_with_and_without_tf32(make_rows):
    rows = make_rows("h200")
    (advice,) = [action for action in section.build(rows).actions if "Train in bf16" in action.what]
    told = r"A step of (\S+) at context (\d+) takes .*?, in tf32 .*? \((.*?)×\) and in fp32 .*? \((.*?)×\)"
    size, context, *gains = re.match(told, advice.why).groups()
    for base, gain in zip(("tf32", "fp32"), gains, strict=True):
        ratios = steps.precision_gains(rows, "bf16", base).set_index(["size", "context_length"])["ratio"]
        assert gain == significant(ratios[size, int(context)])
    without = section.build(rows[rows["precision"] != "tf32"]).actions
    (advice,) = [action for action in without if "Train in bf16" in action.what]
    assert "tf32" not in advice.why
    assert ", in fp32 " in advice.why


def unstable_in_fp32(rows, size):
    """Make all figures of a model in fp32, with TF32 and without, unstable."""
    full = rows["precision"].isin(["fp32", "tf32"])
    rows.loc[(rows["size"] == size) & full & (rows["status"] == "ok"), "status"] = "unstable"
    return rows


def test_a_gain_by_compiling_that_the_host_limits_is_marked_beside_that_of_the_kernels(make_rows):
    rows = with_busy(make_rows("h200"), {128: 60.0, 256: 60.0, 512: 5.0, 1024: 5.0})
    rows["gpu_idle_pct"] = rows["gpu_idle_pct"].mask(rows["mode"] == "compiled", 80.0)
    answer = {problem.name: problem.answer for problem in section.build(rows).problems}["torch_compile (b)"]
    wall, kernels = answer.split(" Of their kernels alone: ")
    gained = steps.compiled_gains(rows).query("precision == 'bf16' and size == 'xl'")["ratio"].item()
    assert f"xl {significant(gained)}× (host-limited)" in wall
    assert f"xl {significant(gained * 2)}×" in kernels


def test_what_ran_out_of_memory_at_a_larger_batch_is_told(make_rows):
    rows = make_rows("h200")
    larger = rows[(rows["size"] == "xl") & (rows["context_length"] == 1024) & (rows["precision"] == "bf16")]
    larger = larger.assign(batch_size=64, status="oom", reason="CUDA out of memory", median_ms=float("nan"))
    parts = section.build(pd.concat([rows, larger], ignore_index=True)).parts
    assert "xl in bf16 at context 1024 and batch 64" in str(parts[-1])


def test_no_ratio_to_an_unstable_step_is_told(make_rows):
    rows = make_rows("h200").query("status == 'ok'")
    slow = (rows["size"] == "small") & (rows["precision"] == "bf16")
    built = section.build(unstable_in_fp32(scaled(rows, 50.0, slow), "small"))
    gained = built.headline[0].cells.set_index("model")["× tf32"]
    assert gained["small (129M, 12 layers of width 768)"] == "–"
    assert gained["medium (423M, 24 layers of width 1,024)"] != "–"
    (advice,) = [action for action in built.actions if "Train in bf16" in action.what]
    assert "small" not in advice.why
    answers = {problem.name: problem.answer for problem in built.problems}
    assert "small" not in answers["benchmarking_mixed_precision (c)"]


def test_the_table_of_phases_marks_unstable_ones(make_rows):
    table = section.build(unstable_in_fp32(make_rows("h200"), "small")).parts[0].cells.set_index(["precision", "size"])
    assert table.loc["fp32", "small"].str.endswith(" (unstable)").all()
    assert not table.loc["fp32", "medium"].str.contains("unstable").any()


def test_a_step_far_from_the_sum_of_its_phases_is_told(make_rows):
    rows = make_rows("h200")
    assert section.build(rows).parts[1] == ""
    step = (rows["phase"] == "train_step") & (rows["size"] == "small") & (rows["precision"] == "bf16")
    assert section.build(scaled(rows, 1.2, step)).parts[1].startswith("A step of small in bf16 takes 1.")
    assert section.build(scaled(rows, 0.8, step)).parts[1].startswith("A step of small in bf16 takes 0.")


def test_beside_a_measured_peak_no_other_product_is_named(make_rows):
    products = pd.DataFrame({"what": "matmul", "dtype": ["bf16", "fp32"], "tflops_per_s": [700.0, 50.0]})
    rows = make_rows("h200").assign(peak_source="measured")
    table, figure, finding = section.build(rows, {"ceilings": products}).headline
    assert "share of the fastest measured product's 990 TFLOP/s" in table.title
    assert "alone" not in finding
    assert not any("matmul" in text.get_text() for text in figure.drawing.axes[0].texts)


def test_the_cold_start_is_told_of_the_models_where_it_is_least_and_most(make_rows):
    rows = make_rows("h200")
    answers = {problem.name: problem.answer for problem in section.build(rows).problems}
    first = steps.first_steps(rows).query("warmup_steps == 0").sort_values("first")
    least, most = (
        f"{ratio(row['first'])} ({row['size']} in {row['precision']} at context {row['context_length']})"
        for _, row in first.iloc[[0, -1]].iterrows()
    )
    assert f"the first step takes {least} to {most} the time of a later one" in answers["benchmarking_script (c)"]
    warm, cold = (rows[rows["warmup_steps"] == warmup] for warmup in (5, 0))
    one = cold[(cold[steps.CELL] == cold[steps.CELL].iloc[0]).all(axis=1)]
    answers = {problem.name: problem.answer for problem in section.build(pd.concat([warm, one])).problems}
    assert answers["benchmarking_script (c)"].endswith(") the time of a later one.")


def test_a_gain_by_compiling_of_an_unstable_step_is_marked(make_rows):
    rows = make_rows("h200")
    steps_of_small = (rows["size"] == "small") & (rows["mode"] == "compiled") & (rows["phase"] == "train_step")
    rows.loc[steps_of_small, "status"] = "unstable"
    answers = {problem.name: problem.answer for problem in section.build(rows).problems}
    first, second, *_ = answers["torch_compile (b)"].partition("(bf16, context 256): ")[2].split(", ")
    assert first.endswith("× (unstable)")
    assert second.endswith("×")
