import pytest

from pipeline.stages.memory.report.charts import charts

from ..charts import faults_of_parts, missing_fields, page_of


@pytest.fixture
def chart(rows_of):
    (made,) = charts(rows_of["h200"])
    return made


@pytest.mark.parametrize("name", ["h200", "smoke"])
def test_what_is_drawn_stands_in_the_rows(rows_of, name):
    (made,) = charts(rows_of[name])
    assert missing_fields(made) == set()


def test_charts_of_parts_of_the_cells_are_whole(rows_of):
    assert charts(rows_of["skipped"]) == []
    assert faults_of_parts(charts, ["size", "precision", "context_length"], rows_of["h200"]) == {}


def test_the_line_joins_the_variants_that_none_beats_in_both(chart):
    for row in chart.rows:
        others = [other for other in chart.rows if other["setting"] == row["setting"] and other is not row]
        beaten = any(other["median_ms"] <= row["median_ms"] and other["peak_gb"] <= row["peak_gb"] for other in others)
        assert row["unbeaten"] != beaten


def test_what_ran_out_of_memory_is_named_and_not_drawn(chart):
    assert "plain attention: OOM" in chart.note
    assert all(row["peak_gb"] > 0 for row in chart.rows)


@pytest.mark.browser
def test_each_variant_of_the_chosen_setting_is_a_point(chart, browser, tmp_path):
    browser.open(page_of([chart], tmp_path / "page.html"))
    for setting in chart.spec["params"][0]["bind"]["options"]:
        browser.pick("stage/trade", "model and workload", setting)
        variants = [row for row in chart.rows if row["setting"] == setting]
        assert browser.run("document.querySelectorAll('.layer_2_marks path').length") == len(variants)
    assert browser.errors == []
