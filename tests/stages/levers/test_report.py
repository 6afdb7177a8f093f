import pytest

from pipeline.report.table import Table
from pipeline.stages.levers.report import build

from ..frames import failed, frame_of, shown, timed, written

CELL = {"context_length": 1024, "combinations": "all", "setting_batch_size": 4, "setting_vocab_size": 10_000}


def step(levers, median_ms, size="medium", limited_by="gpu", **columns):
    rates = {"tokens_per_s": 4096e3 / median_ms, "mfu_pct": 1000 / median_ms, "peak_bytes": 10**9}
    peak = {"peak_tflops_per_s": 989.4, "peak_source": "datasheet"}
    named = {"size": size, "levers": levers, "limited_by": limited_by}
    return timed(median_ms, **CELL | rates | peak | named | columns)


def told(*rows):
    return build(frame_of("levers", rows), {})


def models(section):
    return section.first_screen.models.rows.set_index("size")


def test_the_headline_is_of_the_largest_model():
    section = told(
        *(step(*each) for each in (("eager", 9.0), ("sdpa", 6.0), ("eager", 30.0, "xl"), ("sdpa", 20.0, "xl")))
    )
    assert "xl" in section.first_screen.line
    assert "1.50" in section.first_screen.line


@pytest.mark.parametrize("limited", ["eager", "sdpa"])
def test_the_headline_does_not_rest_on_a_step_that_waits_for_its_host(limited):
    slow = [
        step(name, ms, "xl", "host" if name == limited else "gpu") for name, ms in (("eager", 28.6), ("sdpa", 11.0))
    ]
    section = told(step("eager", 9.0), step("sdpa", 6.0), *slow)
    assert "medium" in section.first_screen.line
    assert "2.60" not in section.first_screen.line
    assert all("host" in change.where for change in told(*slow).changes)


def test_the_headline_does_not_rest_on_a_step_that_is_unstable():
    section = told(
        step("eager", 9.0), step("sdpa", 6.0), step("eager", 30.0, "xl", status="unstable"), step("sdpa", 9.0, "xl")
    )
    assert "medium" in section.first_screen.line
    assert models(section).loc["xl", "verdict"] == "undecided"
    alone = told(step("eager", 9.0, status="unstable"), step("sdpa", 6.0)).first_screen.line
    assert "1.5" not in alone


def test_a_time_of_three_repeats_is_their_median_and_says_how_many_they_are():
    rows = [
        step(name, base * factor, repeat=number)
        for name, base in (("eager", 100.0), ("sdpa", 50.0))
        for number, factor in enumerate((1.0, 1.03, 1.02), 1)
    ]
    section = told(*rows)
    ladder = shown(section)["ladder"].rows.set_index("levers")
    assert ladder.loc["sdpa", "median_ms"] == pytest.approx(51.0)
    assert ladder["repeats"].tolist() == [3, 3]
    assert [change.judged["repeats"] for change in section.changes] == [3]


def test_single_steps_are_told_to_be_single():
    section = told(step("eager", 100.0), step("sdpa", 50.0))
    assert shown(section)["ladder"].rows["repeats"].tolist() == [1, 1]
    assert "repeats" in [head for head, *_ in shown(section)["ladder"].columns]


def test_what_trains_otherwise_or_only_makes_room_tunes_no_model():
    section = told(
        step("eager", 100.0), step("fused+bf16_weights", 40.0), step("checkpointing", 45.0), step("fused", 80.0)
    )
    assert models(section).loc["medium", "levers_tuned"] == "fused"
    assert "80.0 ms" in section.answer
    assert "40.0 ms" not in section.answer


def test_a_combination_that_came_out_wrong_keeps_its_row_and_is_no_change():
    wrong = failed("wrong", **CELL, size="medium", levers="flash")
    section = told(step("eager", 100.0), wrong, step("sdpa", 80.0))
    assert "wrong" in shown(section)["ladder"].markdown()
    assert [change.judged["levers"] for change in section.changes] == ["sdpa"]


def test_the_chart_has_every_lever_alone_of_the_models_that_were_taken_apart():
    section = told(
        *(step("eager", 100.0), step("fused", 90.0), step("sdpa", 80.0), step("fused+sdpa", 70.0)),
        *(step("eager", 200.0, "large"), step("fused+sdpa", 150.0, "large")),
    )
    drawn = shown(section)["gains"].rows
    assert drawn["levers"].tolist() == ["fused", "sdpa", "fused+sdpa"]
    assert set(drawn["size"]) == {"medium"}
    assert set(models(section).index) == {"medium", "large"}


def test_the_summary_has_both_steps_as_numbers():
    [found] = told(step("eager", 100.0), step("sdpa", 80.0)).first_screen.summary
    assert (found["eager"]["median_ms"], found["tuned"]["median_ms"]) == (100.0, 80.0)
    assert found["tuned"]["with"] == "sdpa"


@pytest.mark.parametrize(
    "rows",
    [
        [step("eager", 100.0)],
        [step("sdpa", 80.0)],
        [step("eager_again", 80.0)],
        [failed("oom", **CELL, size="xl", levers="eager"), step("sdpa", 80.0)],
        [step("eager", 100.0, limited_by=None, peak_bytes=None), step("bf16_weights", 80.0, peak_bytes=None)],
    ],
)
def test_any_part_of_the_rows_makes_a_whole_section(rows):
    section = told(*rows)
    screen = section.first_screen
    assert section.answer
    assert "nan" not in written(section)
    assert screen is None or "nan" not in screen.line + screen.models.markdown()
    assert (screen is None) == (not any(row["levers"] == "eager" and row["status"] == "ok" for row in rows))


def test_the_tables_fit():
    section = told(step("eager", 100.0), step("sdpa", 80.0))
    tables = [section.first_screen.models, *(part for part in section.parts if isinstance(part, Table))]
    assert max(len(table.columns) for table in tables) <= 10
