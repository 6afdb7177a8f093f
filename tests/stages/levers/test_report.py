import pandas as pd
import pytest

from pipeline.formulas.faster_products import linear_flops, predicted_gain
from pipeline.formulas.sizes import SIZES
from pipeline.report.drawing import specification
from pipeline.stages.levers.report import build
from pipeline.stages.levers.report_fp8 import predicted_ratios

from ..frames import failed, frame_of, gaps, shown, timed, written

SETTING = {"setting_batch_size": 4, "setting_vocab_size": 10_000, "setting_unstable_rel_error": 0.05}
TO = "\N{NO-BREAK SPACE}→\N{NO-BREAK SPACE}"
CELL = {"context_length": 1024, "precision": "bf16", "combinations": "all", **SETTING}


def step(levers, median_ms, size="medium", limited_by="gpu", **columns):
    rates = {"tokens_per_s": 4096e3 / median_ms, "mfu_pct": 1000 / median_ms, "peak_bytes": 10**9}
    peak = {"peak_tflops_per_s": 989.4, "peak_source": "datasheet"}
    named = {"size": size, "levers": levers, "limited_by": limited_by}
    return timed(median_ms, **CELL | rates | peak | named | columns)


def told(*rows):
    return build(frame_of("levers", rows), {})


def models(section):
    return section.first_screen.models.rows.set_index("size")


@pytest.mark.parametrize(
    ("limited", "model", "gain"), [(None, "xl", "2.60"), ("eager", "medium", "1.50"), ("sdpa", "medium", "1.50")]
)
def test_the_headline_is_of_the_largest_model_that_does_not_wait_for_its_host(limited, model, gain):
    times_ms = {"eager": 28.6, "sdpa": 11.0}
    slow = [step(name, ms, "xl", "host" if name == limited else "gpu") for name, ms in times_ms.items()]
    section = told(step("eager", 9.0), step("sdpa", 6.0), *slow)
    line = section.first_screen.line
    assert "xl" in section.answer
    assert [each for each in ("medium", "xl", "1.50", "2.60") if each in line] == [model, gain]
    assert all(("host" in change.where) == bool(limited) for change in told(*slow).changes)


def test_the_headline_does_not_rest_on_a_step_that_is_unstable():
    both = step("eager", 9.0), step("sdpa", 6.0)
    section = told(*both, step("eager", 30.0, "xl", status="unstable"), step("sdpa", 9.0, "xl"))
    assert "medium" in section.first_screen.line
    assert models(section).loc["xl", "verdict"] == "undecided"
    assert models(section)["utilisation"].str.count("~").to_dict() == {"medium": 0, "xl": 1}
    assert "1.5" not in told(step("eager", 9.0, status="unstable"), step("sdpa", 6.0)).first_screen.line


@pytest.mark.parametrize("again_ms", [8.5, 9.3, 9.6])
def test_a_step_as_written_that_drifts_judges_nothing(again_ms):
    rows = [step("eager", 9.0), step("sdpa", 6.0), step("eager_again", again_ms), step("eager", 9.0, "xl")]
    found = models(told(*rows, step("sdpa", 6.0, "xl")))["verdict"]
    assert found.to_dict() == {"medium": "faster" if again_ms == 9.3 else "undecided", "xl": "faster"}


def test_a_model_that_fits_only_when_tuned_stands_on_the_first_screen_and_the_section_tells_of_one_that_has_both():
    large = [failed("oom", **CELL, size="large", levers="eager"), step("sdpa", 20.0, "large")]
    section = told(step("eager", 9.0), step("sdpa", 6.0), *large, step("fused", 25.0, "large"))
    assert section.answer.startswith("medium")
    assert section.first_screen.line.startswith("Tuned, large")
    assert "medium" in section.first_screen.line
    unsure = told(step("eager", 9.0), step("sdpa", 6.0), *large[:1], step("sdpa", 20.0, "large", limited_by="host"))
    assert unsure.first_screen.line.startswith("Tuned, medium")
    line = section.first_screen.models.markdown().splitlines()[-1]
    assert line == "| large (969M) | OOM | 204,800 | – | – | OOM → 50% | OOM → 1.00 |".replace(" → ", TO)
    bars = specification(section.first_screen.chart)["data"]["values"]
    words = {bar["kind"]: bar["_words"] for bar in bars if bar["size"] == "large"}
    assert words == {"as written": "OOM", "tuned": "204,800 tokens/s"}
    steps = [each["eager"] for each in section.first_screen.summary]
    assert [(each["status"], each["median_ms"]) for each in steps] == [("ok", 9.0), ("oom", None)]
    alone = told(*large)
    assert "204,800" in alone.first_screen.line
    assert "OOM" in alone.first_screen.line
    assert "20.0 ms" in alone.answer
    assert "989" in alone.first_screen.models.caption
    assert not alone.changes


def test_the_line_is_of_steps_that_are_there_and_of_a_model_with_both_if_there_is_one():
    slow, large = step("sdpa", 12.0), step("eager", 30.0, "large")
    assert "455,111" in told(step("eager", 9.0), slow, large).first_screen.line
    unstable = step("sdpa", 20.0, "large", status="unstable")
    assert "~204,800" in told(failed("oom", **CELL, size="large", levers="eager"), unstable).first_screen.line
    assert "136,533" in told(large).first_screen.line


def test_a_model_in_two_cells_stands_once_on_the_first_screen_and_bytes_are_never_unstable_and_may_be_missing():
    again = {"combinations": "sdpa"}
    cells = [step("eager", 9.0, status="unstable"), step("sdpa", 6.0), step("eager", 9.1, **again)]
    [row] = models(told(*cells, failed("failed", **CELL | again, size="medium", levers="sdpa"))).to_dict("records")
    assert row["utilisation"].startswith("~")
    assert row["peak_gb"] == f"1.00{TO}1.00"
    [row] = models(told(step("eager", 9.0, peak_bytes=float("nan")), step("sdpa", 6.0))).to_dict("records")
    assert row["peak_gb"] == f"–{TO}1.00"


def test_the_section_and_its_advice_are_of_the_model_with_the_most_decided_comparisons():
    unsure = [step("eager", 100.0, status="unstable"), step("sdpa", 80.0), step("fused", 90.0)]
    assert {change.what for change in told(*unsure).changes} == {"SDPA", "fused AdamW"}
    section = told(*unsure, step("eager", 300.0, "large"), step("sdpa", 200.0, "large"))
    assert section.answer.startswith("large")
    assert [change.judged["size"] for change in section.changes] == ["large"]


def test_a_time_of_three_repeats_is_their_median_and_the_summary_has_both_steps_as_numbers():
    sides, factors = {"eager": 100.0, "sdpa": 50.0}.items(), enumerate((1.0, 1.03, 1.02), 1)
    section = told(*(step(name, ms * by, repeat=number) for number, by in factors for name, ms in sides))
    found = shown(section)["ladder"].rows.set_index("levers").loc["sdpa", ["median_ms", "repeats"]]
    assert found.tolist() == pytest.approx([51.0, 3])
    assert [change.judged["repeats"] for change in section.changes] == [3]
    [found] = section.first_screen.summary
    assert [found["eager"]["median_ms"], found["tuned"]["median_ms"]] == pytest.approx([102.0, 51.0])
    assert found["tuned"]["with"] == "sdpa"
    assert told(step("eager", 100.0)).first_screen.summary[0]["tuned"] is None


def test_each_precision_is_told_by_itself_and_the_first_screen_holds_one_peak():
    fp32 = {"precision": "fp32", "peak_tflops_per_s": 66.9}
    large = step("eager", 200.0, "large"), step("sdpa", 150.0, "large")
    slow = step("eager", 400.0, **fp32), step("sdpa", 320.0, **fp32)
    both = told(step("eager", 100.0), step("sdpa", 50.0), step("fused", 90.0), *large, *slow)
    assert models(both)["precision"].to_dict() == {"medium": "bf16", "large": "bf16"}
    assert set(both.first_screen.chart.rows["peak_tflops_per_s"]) == {989.4}
    assert {*shown(both)["gains"].rows["precision"], *shown(both)["ladder"].rows["precision"]} == {"bf16"}
    summary = {(each["size"], each["precision"]): each for each in both.first_screen.summary}
    assert {key: each["tuned"]["median_ms"] for key, each in summary.items()} == pytest.approx(
        {("medium", "bf16"): 50.0, ("medium", "fp32"): 320.0, ("large", "bf16"): 150.0}
    )
    alone = told(*slow)
    screen = alone.first_screen
    words = screen.line + screen.chart.title + screen.chart.x.title + screen.models.markdown() + written(alone)
    assert "bf16" not in words
    assert all("fp32" in each for each in (screen.chart.title, screen.models.caption, alone.answer))
    assert all("66.9" in each for each in (screen.chart.x.title, screen.models.caption))
    # Of as many models in each bf16 is told.
    assert set(models(told(*slow, *large))["precision"]) == {"bf16"}


def test_of_two_ways_to_the_same_end_the_librarys_is_advised_unless_ours_is_faster():
    for ours_ms, told_of in ((79.9, "SDPA"), (90.0, "SDPA"), (75.0, "our flash attention")):
        section = told(step("eager", 100.0), step("sdpa", 80.0), step("flash", ours_ms))
        assert [change.what for change in section.changes] == [told_of], ours_ms


def test_what_trains_otherwise_makes_room_or_came_out_wrong_has_a_row_and_tunes_no_model():
    otherwise = step("fused+bf16_weights", 40.0), step("checkpointing", 45.0)
    section = told(step("eager", 100.0), *otherwise, step("fused", 80.0))
    assert models(section).loc["medium", "levers_tuned"] == "fused"
    assert "80.0 ms" in section.answer
    assert "40.0 ms" not in section.answer
    assert "fused+bf16_weights" in set(shown(section)["ladder"].rows["levers"])  # the fastest of all
    advice = {change.judged["levers"]: "changes training" in change.what for change in section.changes}
    assert advice == {"fused+bf16_weights": True, "fused": False, "checkpointing": False}
    section = told(step("eager", 100.0), step("fused", 80.0), step("fused+sdpa", 90.0), step("eager_again", 79.0))
    assert [change.judged["levers"] for change in section.changes] == ["fused"]
    wrong = failed("wrong", **CELL, size="medium", levers="flash")
    section = told(step("eager", 100.0), wrong, step("sdpa", 80.0))
    assert "wrong" in shown(section)["ladder"].markdown()
    assert [change.judged["levers"] for change in section.changes] == ["sdpa"]


def test_the_chart_has_every_lever_alone_of_the_models_that_were_taken_apart():
    section = told(
        *(step("eager", 100.0), step("sdpa", 80.0), step("flash", 85.0), step("fused+sdpa", 70.0), step("fused", 90.0)),
        *(step("eager", 200.0, "large"), step("fused+sdpa", 150.0, "large")),
    )
    drawn = shown(section)["gains"].rows
    assert drawn["levers"].tolist() == ["fused", "flash", "sdpa", "fused+sdpa"]
    assert set(drawn["size"]) == {"medium"}
    assert set(models(section).index) == {"medium", "large"}
    # Of two kinds of attention the faster is a change to make.
    assert [change.judged["levers"] for change in section.changes] == ["fused+sdpa", "sdpa", "fused"]


@pytest.mark.parametrize(
    ("rows", "has_screen"),
    [
        ([step("eager_again", 80.0)], False),
        ([failed("oom", **CELL, size="xl", levers="eager"), step("sdpa", 80.0)], False),
        ([step("eager", 9.0, limited_by=None, peak_bytes=None), step("bf16_weights", 8.0, peak_bytes=None)], True),
    ],
)
def test_any_part_of_the_rows_makes_a_whole_section(rows, has_screen):
    section = told(*rows)
    screen = section.first_screen
    assert gaps(section) == []
    assert "nan" not in (screen.line + screen.models.markdown() if screen else "")
    assert bool(screen) == has_screen


@pytest.mark.parametrize(
    ("lacking", "is_predicted"), [({}, True), ({"fused+compile": None}, False), ({"fp8": None}, False)]
)
def test_fp8_is_predicted_of_the_same_step_without_it_and_of_what_that_gained(lacking, is_predicted):
    times_ms = {"eager": 400.0, "fused+compile": 200.0, "fused+compile+fp8": 190.0, "fused+compile+fp8_rowwise": 190.0}
    rates = {"bf16": 800.0, "fp8": 1500.0} | lacking
    ceilings = pd.DataFrame({"dtype": ["bf16", *rates, None], "tflops_per_s": [600.0, *rates.values(), None]})
    rows = frame_of("levers", [step(each, ms, "2.7B") for each, ms in times_ms.items() if each not in lacking])
    found = predicted_ratios(rows, ceilings).set_axis(rows["levers"]).dropna()
    gain = predicted_gain(linear_flops(SIZES["2.7B"], 4, 1024), 200.0, 800.0, 1500.0)
    assert gain > 1
    both = ["fused+compile+fp8", "fused+compile+fp8_rowwise"]
    assert found.to_dict() == (dict.fromkeys(both, pytest.approx(2.0 * gain)) if is_predicted else {})
