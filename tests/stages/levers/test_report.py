import pandas as pd
import pytest

from pipeline.formulas.faster_products import linear_flops, predicted_gain
from pipeline.formulas.sizes import SIZES
from pipeline.report.drawing import specification
from pipeline.stages.levers.report import build
from pipeline.stages.levers.report_fp8 import predicted_ratios

from ..frames import failed, frame_of, gaps, shown, timed, written

SETTING = {"setting_batch_size": 4, "setting_vocab_size": 10_000, "setting_checked_steps": 20}
TO = "\N{NO-BREAK SPACE}→\N{NO-BREAK SPACE}"
CELL = {"context_length": 1024, "precision": "bf16", "combinations": "all", **SETTING}


def step(levers, median_ms, size="medium", limited_by="gpu", **columns):
    rates = {"tokens_per_s": 4096e3 / median_ms, "mfu_pct": 1000 / median_ms, "peak_bytes": 10**9}
    peak = {"peak_tflops_per_s": 989.4, "peak_source": "datasheet"}
    named = {"size": size, "levers": levers, "limited_by": limited_by}
    return timed(median_ms, **CELL | rates | peak | named | columns)


def build_section(*rows):
    return build(frame_of("levers", rows), {})


def models(section):
    return section.first_screen.models.rows.set_index("size")


@pytest.mark.parametrize(
    ("limited", "model", "gain"), [(None, "xl", "2.60"), ("eager", "medium", "1.50"), ("sdpa", "medium", "1.50")]
)
def test_the_headline_is_about_the_largest_model_not_limited_by_the_host(limited, model, gain):
    times_ms = {"eager": 28.6, "sdpa": 11.0}
    slow = [step(name, ms, "xl", "host" if name == limited else "gpu") for name, ms in times_ms.items()]
    section = build_section(step("eager", 9.0), step("sdpa", 6.0), *slow)
    line = section.first_screen.line
    assert "xl" in section.answer
    assert [each for each in ("medium", "xl", "1.50", "2.60") if each in line] == [model, gain]
    assert all(("host" in change.where) == bool(limited) for change in build_section(*slow).changes)


def test_the_headline_does_not_use_an_unstable_step():
    both = step("eager", 9.0), step("sdpa", 6.0)
    section = build_section(*both, step("eager", 30.0, "xl", status="unstable"), step("sdpa", 9.0, "xl"))
    assert "medium" in section.first_screen.line
    assert models(section).loc["xl", "verdict"] == "undecided"
    assert models(section)["utilisation"].str.count("~").to_dict() == {"medium": 0, "xl": 1}
    assert "1.5" not in build_section(step("eager", 9.0, status="unstable"), step("sdpa", 6.0)).first_screen.line


def test_a_model_that_fits_only_when_tuned_leads_the_first_screen_not_the_section():
    large = [failed("oom", **CELL, size="large", levers="eager"), step("sdpa", 20.0, "large")]
    section = build_section(step("eager", 9.0), step("sdpa", 6.0), *large, step("fused", 25.0, "large"))
    assert section.answer.startswith("medium")
    assert section.first_screen.line.startswith("Tuned, large")
    assert "medium" in section.first_screen.line
    unsure = build_section(
        step("eager", 9.0), step("sdpa", 6.0), *large[:1], step("sdpa", 20.0, "large", limited_by="host")
    )
    assert unsure.first_screen.line.startswith("Tuned, medium")
    line = section.first_screen.models.markdown().splitlines()[-1]
    assert line == "| large (969M) | OOM | 204,800 | – | – | OOM → 50% | OOM → 1.00 |".replace(" → ", TO)
    bars = specification(section.first_screen.chart)["data"]["values"]
    words = {bar["kind"]: bar["_words"] for bar in bars if bar["size"] == "large"}
    assert words == {"as written": "OOM", "tuned": "204,800 tokens/s"}
    steps = [each["eager"] for each in section.first_screen.summary]
    assert [(each["status"], each["median_ms"]) for each in steps] == [("ok", 9.0), ("oom", None)]
    alone = build_section(*large)
    assert "204,800" in alone.first_screen.line
    assert "OOM" in alone.first_screen.line
    assert "20.0 ms" in alone.answer
    assert "989" in alone.first_screen.models.caption
    assert not alone.changes


def test_the_headline_prefers_a_model_with_both_steps_to_one_with_a_single_step():
    slow, large = step("sdpa", 12.0), step("eager", 30.0, "large")
    assert "455,111" in build_section(step("eager", 9.0), slow, large).first_screen.line
    unstable = step("sdpa", 20.0, "large", status="unstable")
    assert "~204,800" in build_section(failed("oom", **CELL, size="large", levers="eager"), unstable).first_screen.line
    assert "136,533" in build_section(large).first_screen.line


def test_a_model_in_two_cells_is_shown_once_and_bytes_may_be_missing_but_not_unstable():
    again = {"combinations": "sdpa"}
    cells = [step("eager", 9.0, status="unstable"), step("sdpa", 6.0), step("eager", 9.1, **again)]
    [row] = models(build_section(*cells, failed("failed", **CELL | again, size="medium", levers="sdpa"))).to_dict(
        "records"
    )
    assert row["utilisation"].startswith("~")
    assert row["peak_gb"] == f"1.00{TO}1.00"
    [row] = models(build_section(step("eager", 9.0, peak_bytes=float("nan")), step("sdpa", 6.0))).to_dict("records")
    assert row["peak_gb"] == f"–{TO}1.00"


def test_the_section_and_its_advice_cover_the_model_with_most_decided_comparisons():
    unsure = [step("eager", 100.0, status="unstable"), step("sdpa", 80.0), step("fused", 90.0)]
    assert {change.what for change in build_section(*unsure).changes} == {"SDPA", "fused AdamW"}
    section = build_section(*unsure, step("eager", 300.0, "large"), step("sdpa", 200.0, "large"))
    assert section.answer.startswith("large")
    assert [change.judged["size"] for change in section.changes] == ["large"]


def test_repeats_are_reduced_to_their_median_and_the_summary_has_both_steps():
    sides, factors = {"eager": 100.0, "sdpa": 50.0}.items(), enumerate((1.0, 1.03, 1.02), 1)
    section = build_section(*(step(name, ms * by, repeat=number) for number, by in factors for name, ms in sides))
    found = shown(section)["ladder"].rows.set_index("levers").loc["sdpa", ["median_ms", "repeats"]]
    assert found.tolist() == pytest.approx([51.0, 3])
    assert [change.judged["repeats"] for change in section.changes] == [3]
    [found] = section.first_screen.summary
    assert [found["eager"]["median_ms"], found["tuned"]["median_ms"]] == pytest.approx([102.0, 51.0])
    assert found["tuned"]["with"] == "sdpa"
    assert build_section(step("eager", 100.0)).first_screen.summary[0]["tuned"] is None


def test_precisions_are_reported_separately_and_the_first_screen_has_one_peak():
    fp32 = {"precision": "fp32", "peak_tflops_per_s": 66.9}
    large = step("eager", 200.0, "large"), step("sdpa", 150.0, "large")
    slow = step("eager", 400.0, **fp32), step("sdpa", 320.0, **fp32)
    both = build_section(step("eager", 100.0), step("sdpa", 50.0), step("fused", 90.0), *large, *slow)
    assert models(both)["precision"].to_dict() == {"medium": "bf16", "large": "bf16"}
    assert set(both.first_screen.chart.rows["peak_tflops_per_s"]) == {989.4}
    assert {*shown(both)["gains"].rows["precision"], *shown(both)["ladder"].rows["precision"]} == {"bf16"}
    summary = {(each["size"], each["precision"]): each for each in both.first_screen.summary}
    assert {key: each["tuned"]["median_ms"] for key, each in summary.items()} == pytest.approx(
        {("medium", "bf16"): 50.0, ("medium", "fp32"): 320.0, ("large", "bf16"): 150.0}
    )
    alone = build_section(*slow)
    screen = alone.first_screen
    words = screen.line + screen.chart.title + screen.chart.x.title + screen.models.markdown() + written(alone)
    assert "bf16" not in words
    assert all("fp32" in each for each in (screen.chart.title, screen.models.caption, alone.answer))
    assert all("66.9" in each for each in (screen.chart.x.title, screen.models.caption))
    # With as many models in each precision, bf16 is reported.
    assert set(models(build_section(*slow, *large))["precision"]) == {"bf16"}


def test_sdpa_is_suggested_unless_our_attention_is_faster():
    ours = "our flash attention"
    # Without repeats, ours must be 5% faster.
    for ours_ms, suggested in ((79.9, "SDPA"), (90.0, "SDPA"), (78.0, "SDPA"), (75.0, ours)):
        section = build_section(step("eager", 100.0), step("sdpa", 80.0), step("flash", ours_ms))
        assert [change.what for change in section.changes] == [suggested], ours_ms
    for name, suggested in (("sdpa", "SDPA"), ("flash", ours)):
        assert [change.what for change in build_section(step("eager", 100.0), step(name, 80.0)).changes] == [suggested]
    twice = step("sdpa", 80.0), step("sdpa", 81.0, combinations="sdpa"), step("flash", 75.0)
    assert {change.what for change in build_section(step("eager", 100.0), *twice).changes} == {ours}


def test_levers_that_change_training_save_memory_or_are_wrong_tune_no_model():
    otherwise = step("fused+bf16_weights", 40.0), step("checkpointing", 45.0)
    section = build_section(step("eager", 100.0), *otherwise, step("fused", 80.0))
    assert models(section).loc["medium", "levers_tuned"] == "fused"
    assert "80.0 ms" in section.answer
    assert "40.0 ms" not in section.answer
    assert "fused+bf16_weights" in set(shown(section)["ladder"].rows["levers"])  # the fastest of all
    advice = {change.judged["levers"]: "changes training" in change.what for change in section.changes}
    assert advice == {"fused+bf16_weights": True, "fused": False, "checkpointing": False}
    section = build_section(
        step("eager", 100.0), step("fused", 80.0), step("fused+sdpa", 90.0), step("eager_again", 79.0)
    )
    assert [change.judged["levers"] for change in section.changes] == ["fused"]
    wrong = failed("wrong", **CELL, size="medium", levers="flash")
    section = build_section(step("eager", 100.0), wrong, step("sdpa", 80.0))
    assert "wrong" in shown(section)["ladder"].markdown()
    assert [change.judged["levers"] for change in section.changes] == ["sdpa"]


def test_the_chart_has_each_lever_alone_for_models_measured_lever_by_lever():
    section = build_section(
        *(step("eager", 100.0), step("sdpa", 80.0), step("flash", 85.0), step("fused+sdpa", 70.0), step("fused", 90.0)),
        *(step("eager", 200.0, "large"), step("fused+sdpa", 150.0, "large")),
    )
    drawn = shown(section)["gains"].rows
    assert drawn["levers"].tolist() == ["fused", "flash", "sdpa", "fused+sdpa"]
    assert set(drawn["size"]) == {"medium"}
    assert set(models(section).index) == {"medium", "large"}
    # Only the faster of the two kinds of attention is suggested.
    assert [change.judged["levers"] for change in section.changes] == ["fused+sdpa", "sdpa", "fused"]


@pytest.mark.parametrize(
    ("rows", "has_screen"),
    [
        ([step("eager_again", 80.0)], False),
        ([failed("oom", **CELL, size="xl", levers="eager"), step("sdpa", 80.0)], False),
        ([step("eager", 9.0, limited_by=None, peak_bytes=None), step("bf16_weights", 8.0, peak_bytes=None)], True),
    ],
)
def test_incomplete_rows_still_make_a_complete_section(rows, has_screen):
    section = build_section(*rows)
    screen = section.first_screen
    assert gaps(section) == []
    assert "nan" not in (screen.line + screen.models.markdown() if screen else "")
    assert bool(screen) == has_screen


@pytest.mark.parametrize(
    ("lacking", "is_predicted"), [({}, True), ({"fused+compile": None}, False), ({"fp8": None}, False)]
)
def test_fp8_is_predicted_from_the_same_step_without_it_and_its_gain(lacking, is_predicted):
    times_ms = {"eager": 400.0, "fused+compile": 200.0, "fused+compile+fp8": 190.0, "fused+compile+fp8_rowwise": 190.0}
    rates = {"bf16": 800.0, "fp8": 1500.0} | lacking
    ceilings = pd.DataFrame({"dtype": ["bf16", *rates, None], "tflops_per_s": [600.0, *rates.values(), None]})
    rows = frame_of("levers", [step(each, ms, "2.7B") for each, ms in times_ms.items() if each not in lacking])
    found = predicted_ratios(rows, ceilings).set_axis(rows["levers"]).dropna()
    gain = predicted_gain(linear_flops(SIZES["2.7B"], 4, 1024), 200.0, 800.0, 1500.0)
    assert gain > 1
    both = ["fused+compile+fp8", "fused+compile+fp8_rowwise"]
    assert found.to_dict() == (dict.fromkeys(both, pytest.approx(2.0 * gain)) if is_predicted else {})
