import pytest

from pipeline.stages.levers.report.charts import charts

from ..charts import faults_of_parts, missing_fields, page_of


@pytest.mark.parametrize("name", ["NVIDIA H200", "AMD EPYC"])
def test_what_is_drawn_stands_in_the_rows(make_rows, name):
    (chart,) = charts(make_rows(name))
    assert missing_fields(chart) == set()


def test_charts_of_parts_of_the_cells_are_whole(make_rows):
    assert faults_of_parts(charts, ["size", "levers"], make_rows("NVIDIA H200")) == {}


def test_a_wrong_step_has_no_bar_and_the_ladder_has_one_lever_more_each(make_rows):
    (chart,) = charts(make_rows("NVIDIA H200"))
    models = {row["model"] for row in chart.rows}
    assert ("medium, context 1024", "flash") not in {(row["model"], row["levers"]) for row in chart.rows}
    for model in models:
        rungs = sorted(row["levers"].count("+") for row in chart.rows if row["model"] == model and row["ladder"])
        assert rungs == [0, *range(len(rungs) - 1)]  # eager, one lever, ...


def test_a_bar_is_named_by_what_it_adds_where_the_others_have_a_bar(make_rows):
    (chart,) = charts(make_rows("NVIDIA H200"))
    names = {(row["model"], row["bar"]): row["levers"] for row in chart.rows}
    assert len(names) == len(chart.rows)
    for (model, bar), levers in names.items():
        others, _, last = levers.rpartition(" + ")
        assert bar in (levers, f"… + {last}")
        assert bar == levers or others in {row["levers"] for row in chart.rows if row["model"] == model}
    assert any(bar.startswith("…") for _, bar in names)


@pytest.mark.browser
def test_the_ladder_can_be_shown_alone(make_rows, browser, tmp_path):
    (chart,) = charts(make_rows("NVIDIA H200"))
    browser.open(page_of([chart], tmp_path / "page.html"))
    first = chart.spec["params"][0]["value"]
    rows = [row for row in chart.rows if row["model"] == first]
    assert browser.marks("stage/gains")["bars"] == len(rows)
    browser.pick("stage/gains", "combinations", "one lever more each")
    assert browser.marks("stage/gains")["bars"] == sum(row["ladder"] for row in rows) < len(rows)
    assert browser.errors == []
