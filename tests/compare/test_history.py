from pathlib import Path

import pytest

from pipeline.compare import page
from pipeline.compare.history import chart, history, table
from pipeline.compare.runs import load_runs
from pipeline.errors import UserError
from pipeline.registry import stages

ROOT = Path(__file__).parents[2]

LEVERS = stages()["levers"]


@pytest.fixture
def runs(make_run):
    """Six runs of three repeats each, not in order of time."""

    def run_of_day(day, factor):
        medians = {"eager": [100.0] * 3, "sdpa": [factor * each for each in (50.0, 50.1, 49.9)]}
        parts = {"started_at": f"2026-01-0{day}T00:00:00Z", "code": {"digest": "a", "commit": f"c{day}"}}
        return make_run(f"day{day}", medians, **parts)

    return [run_of_day(day, 1.0 if day < 4 else 1.1) for day in (5, 1, 6, 3, 2, 4)]


def test_a_history_is_in_order_of_time_and_names_the_step_at_its_run(runs):
    rows = history(runs, LEVERS, ["size=medium", "levers=sdpa"])
    assert list(rows["run"]) == [f"day{day}" for day in range(1, 7)]
    assert list(rows["step"].notna()) == [False] * 3 + [True] + [False] * 2
    assert "1.10× slower" in rows["step"][3]
    assert rows["median_ms"].between(rows["low_ms"], rows["high_ms"], inclusive="neither").all()
    assert "c4" in table(rows).markdown()
    assert list(chart(rows).rows["since"].unique()) == ["since day1", "since day4"]


def test_text_and_page_show_a_history_without_runs_that_lack_the_row(runs, make_run):
    parts = page.one_row(history([*runs, make_run("other", {"eager": [1.0]})], LEVERS, ["levers=sdpa"]))
    text, html = page.markdown(parts), page.html(runs, parts, {})
    assert ["levers size=medium" in text, "| day4 |" in text, "other" in text] == [True, True, False]
    assert 'data-chart="compare/history"' in html
    assert "](figures" not in text


def test_a_record_older_than_an_axis_has_its_default():
    runs = load_runs([ROOT / "docs/earlier-h200", ROOT / "docs/alone-h200"], stages())
    given = ["precision=bf16", "size=small", "context_length=256", "mode=eager", "phase=train_step", "clock=host"]
    rows = history(runs, stages()["timing"], given)
    assert list(rows["run"]) == ["earlier-h200", "alone-h200"]
    assert "batch_size=4" in rows["row"][0]


def test_rows_of_different_amounts_of_work_are_several_rows(runs):
    for record in runs[0].records:
        record["settings"]["vocab_size"] = 500
    with pytest.raises(UserError, match=r"names several rows; they differ in vocab_size=500\|10000"):
        history(runs, LEVERS, ["levers=sdpa"])
    assert len(history(runs, LEVERS, ["levers=sdpa", "vocab_size=10000"])) == 5


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (["lever=sdpa"], "unknown key 'lever': must be one of .*size, .*levers"),
        (["size=medium"], r"names several rows; they differ in levers=eager\|sdpa"),
        (["levers=mine"], "has a time in 0 of 6 runs: a history needs two"),
    ],
)
def test_words_that_name_no_row_or_several_give_a_one_line_error(runs, given, complaint):
    with pytest.raises(UserError, match=complaint):
        history(runs, LEVERS, given)
