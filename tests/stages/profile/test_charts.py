import json

import pytest

from pipeline.stages.profile.report.charts import IDLE, charts
from pipeline.stages.profile.report.facts import PASS_WORDS, captures

from ..charts import faults_of_parts, missing_fields, page_of


@pytest.fixture(scope="module")
def rows(make_rows):
    return make_rows("h200")


def test_what_is_drawn_stands_in_the_rows(rows):
    for chart in charts(rows):
        assert missing_fields(chart) == set()


def test_without_a_capture_there_is_no_chart(make_rows):
    assert charts(make_rows("skipped")) == []


def test_charts_of_parts_of_the_cells_are_whole(rows):
    assert faults_of_parts(charts, ["precision", "size", "context_length"], rows) == {}


def test_kinds_of_work_are_all_kernels_and_idle_is_the_wall_time_in_which_none_ran(rows):
    chart, _ = charts(rows)
    for one in captures(rows):
        if one.cell.profiler != "auto":
            continue
        for path in one.work_ms.index.intersection(PASS_WORDS):
            setting = f"{one.cell.precision}, context {one.cell.context_length}"
            parts = {
                row["category"]: row["time_ms"]
                for row in chart.rows
                if (row["setting"], row["size"], row["what"]) == (setting, one.cell.size, PASS_WORDS[path])
            }
            idle = max(0.0, one.times_ms.loc[path, "host"] - one.times_ms.loc[path, "busy"])
            assert parts.pop(IDLE, 0.0) == pytest.approx(idle)
            assert sum(parts.values()) == pytest.approx(one.total_ms(path))


def test_the_middle_layer_is_drawn_kernel_by_kernel_at_each_model_s_longest_context(rows):
    _, chart = charts(rows)
    layers = rows[rows["kind"] == "layer"]
    for (precision, size), group in layers.groupby(["precision", "size"]):
        last = group[group["context_length"] == group["context_length"].max()].iloc[0]
        setting = f"{size}, {precision}, context {last['context_length']}"
        drawn = [line for line in chart.rows if line["setting"] == setting]
        events = json.loads(last["events"])
        assert [(line["kernel"], line["start_us"]) for line in drawn] == [(event[0], event[4]) for event in events]
        assert {line["part"] for line in drawn} >= {"softmax", "attention scores", "final matmul"}
        assert all(line["end_us"] - line["start_us"] == pytest.approx(line["duration_us"]) for line in drawn)
    assert {line["setting"] for line in chart.rows} == set(chart.spec["params"][0]["bind"]["options"])


def test_without_the_events_of_a_layer_there_is_no_such_chart(rows):
    assert [chart.name for chart in charts(rows[rows["kind"] != "layer"])] == ["categories"]


@pytest.mark.browser
def test_each_part_of_the_chosen_pass_is_a_bar(rows, browser, tmp_path):
    chart, _ = charts(rows)
    browser.open(page_of([chart], tmp_path / "page.html"))
    what, setting = (parameter["value"] for parameter in chart.spec["params"])
    shown = [row for row in chart.rows if (row["what"], row["setting"]) == (what, setting)]
    assert browser.marks("stage/categories")["bars"] == len(shown)
    assert browser.errors == []
