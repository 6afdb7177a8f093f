import pandas as pd
import pytest

from pipeline.stages.flash.report.charts import ALL, FASTEST, charts

from ..charts import faults_of_parts, missing_fields, page_of


@pytest.fixture
def chart(make_rows):
    (made,) = charts(make_rows("h200"))
    return made


def test_what_is_drawn_stands_in_the_rows(chart):
    assert missing_fields(chart) == set()


def test_one_head_alone_has_no_chart(make_rows):
    assert charts(make_rows("laptop")) == []


def test_charts_of_parts_of_the_cells_are_whole(make_rows):
    assert faults_of_parts(charts, ["dtype", "num_heads", "head_dim", "seq_len"], make_rows("h200")) == {}


def test_a_kernel_without_a_figure_has_its_outcome_in_place_of_a_bar(chart):
    failed = [row for row in chart.rows if row["status"] not in ("ok", "unstable")]
    assert failed
    for row in failed:
        assert row["rate"] == 0
        assert row["text"].startswith({"oom": "OOM", "skipped": "skipped", "wrong": "wrong"}[row["status"]])


def test_the_fastest_peer_is_the_one_with_the_least_time(chart):
    groups = {}
    for row in chart.rows:
        if row["impl"] != "triton" and row["median_ms"] is not None:
            groups.setdefault((row["dtype"], row["what"], row["shape"]), []).append(row)
    for rows in groups.values():
        (fastest,) = [row for row in rows if row["is_fastest"]]
        assert fastest["median_ms"] == min(row["median_ms"] for row in rows)


def test_a_matrix_products_rate_is_a_line_where_it_was_measured(make_rows):
    ceilings = pd.DataFrame({"dtype": ["bf16", "tf32"], "tflops_per_s": [777.0, 450.0]})
    without, (made,) = (charts(make_rows("h200"), {"ceilings": found}) for found in (pd.DataFrame(), ceilings))
    assert len(made.spec["layer"]) == len(without[0].spec["layer"]) + 1
    assert made.spec["layer"][-1]["data"]["values"] == [{"dtype": "bf16", "product_rate": 777.0}]
    assert missing_fields(made) == set()


def test_shared_keys_are_a_shape_of_their_own(chart):
    assert {"1×32:8×8192×128 causal"} < {row["shape"] for row in chart.rows}


@pytest.mark.browser
def test_a_chosen_peer_stands_beside_ours_alone(chart, browser, tmp_path):
    browser.open(page_of([chart], tmp_path / "page.html"))
    shown = [row for row in chart.rows if row["dtype"] == "bf16" and row["what"] == "forward + backward"]
    shapes = {row["shape"] for row in shown}
    assert browser.marks("stage/rates")["bars"] == len(shown)
    browser.pick("stage/rates", "triton beside", "sdpa_cudnn")
    assert browser.marks("stage/rates")["bars"] == sum(row["impl"] in ("triton", "sdpa_cudnn") for row in shown)
    browser.pick("stage/rates", "triton beside", FASTEST)
    assert browser.marks("stage/rates")["bars"] == 2 * len(shapes)
    browser.pick("stage/rates", "triton beside", ALL)
    assert browser.marks("stage/rates")["bars"] == len(shown)
    assert browser.errors == []
