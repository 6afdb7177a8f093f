import pandas as pd
import pytest

from pipeline.stages.allreduce.report.charts import charts

from ..charts import faults_of_parts, missing_fields, page_of

LINK = pd.DataFrame({"kind": ["to_peer"], "gb_per_s": [380.0], "status": ["ok"]})


@pytest.mark.parametrize("name", ["h200", "laptop", "smoke"])
def test_what_is_drawn_stands_in_the_rows(make_rows, name):
    (chart,) = charts(make_rows(name), {"ceilings": LINK})
    assert missing_fields(chart) == set()


def test_charts_of_parts_of_the_cells_are_whole(make_rows):
    assert charts(make_rows("nothing")) == []
    assert faults_of_parts(charts, ["backend", "world_size"], make_rows("h200")) == {}


def test_the_range_of_a_bandwidth_is_that_of_the_quartiles_of_its_time(make_rows):
    (chart,) = charts(make_rows("h200"))
    for row in chart.rows:
        assert row["q1_busbw_gb_per_s"] * row["q3_ms"] == pytest.approx(row["busbw_gb_per_s"] * row["median_ms"])
        assert row["q1_busbw_gb_per_s"] <= row["busbw_gb_per_s"] <= row["q3_busbw_gb_per_s"]


@pytest.mark.browser
@pytest.mark.parametrize(("beside", "lines"), [({}, 0), ({"ceilings": LINK}, 1)])
def test_the_link_is_drawn_beside_nccl_where_it_was_measured(make_rows, browser, tmp_path, beside, lines):
    (chart,) = charts(make_rows("h200"), beside)
    browser.open(page_of([chart], tmp_path / "page.html"))
    browser.pick("stage/busbw", "backend", "nccl")
    assert browser.run("document.querySelectorAll('.layer_3_marks line').length") == lines
    assert browser.errors == []
