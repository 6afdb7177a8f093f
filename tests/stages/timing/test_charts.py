import pytest

from pipeline.formulas.flops import train_step_flops
from pipeline.formulas.sizes import SIZES
from pipeline.stages.timing.report.charts import charts

from ..charts import faults_of_parts, missing_fields, page_of


@pytest.fixture
def made(make_rows):
    rows = make_rows("h200")
    busy = rows.assign(gpu_busy_ms=0.75 * rows["median_ms"], gpu_idle_pct=25.0, launches=900, limited_by="host")
    return {chart.name: chart for chart in charts(busy)}


@pytest.mark.parametrize("name", ["h200", "laptop", "smoke"])
def test_what_is_drawn_stands_in_the_rows(make_rows, name):
    assert [missing_fields(chart) for chart in charts(make_rows(name))] == [set(), set()]


def test_charts_of_parts_of_the_cells_are_whole(make_rows):
    assert faults_of_parts(charts, ["precision", "size"], make_rows("h200")) == {}


def test_a_rate_is_the_work_over_the_time_and_its_range_that_of_the_quartiles(made):
    for row in made["achieved"].rows:
        flops = train_step_flops(SIZES[row["size"]], 10_000, 4, row["context_length"])
        assert row["work"] == pytest.approx(flops / 1e12)
        for rate, time_ms in (("rate", "median_ms"), ("low", "q3_ms"), ("high", "q1_ms")):
            assert row[rate] == pytest.approx(flops / row[time_ms] / 1e9)


def test_busy_and_idle_are_the_whole_step(made):
    steps = {}
    for row in made["wall_and_idle"].rows:
        steps.setdefault((row["setting"], row["bar"], row["median_ms"]), {})[row["part"]] = row["part_ms"]
    for (_, _, median_ms), parts in steps.items():
        assert set(parts) == {"GPU busy", "GPU idle"}
        assert sum(parts.values()) == pytest.approx(median_ms)
        assert parts["GPU idle"] == pytest.approx(median_ms / 4)


def test_a_step_whose_busy_time_is_unknown_is_drawn_as_wall_time(make_rows):
    _, steps = charts(make_rows("laptop"))
    assert {row["part"] for row in steps.rows} == {"wall time"}


@pytest.mark.browser
def test_every_mark_is_drawn(made, browser, tmp_path):
    browser.open(page_of(made.values(), tmp_path / "page.html"))
    assert browser.errors == []
    marks = browser.marks("stage/achieved")
    assert marks["symbol"] >= len(made["achieved"].rows)
    shown = [row for row in made["wall_and_idle"].rows if row["setting"] == "bf16, context 256"]
    assert browser.marks("stage/wall_and_idle")["bars"] == len(shown)
