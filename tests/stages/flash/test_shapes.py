import math

import pandas as pd
import pytest

from pipeline.report.page_parts import MOST_TABLE_ROWS
from pipeline.report.tables import MAX_COLUMNS
from pipeline.stages.flash.report import facts
from pipeline.stages.flash.report.shapes import _chosen, shapes

TIMES = ["median_ms", "q1_ms", "q3_ms"]
RATE, HELD = "ours, TFLOP/s", "ratio, sustained"


@pytest.fixture
def rows(make_rows):
    return facts.several_heads(facts.ordered(make_rows("h200")))


def table_of(rows, **products):
    return shapes(rows, products)[0].cells


def test_a_table_of_many_problems_has_the_first_of_every_dtype_and_mask():
    problems = pd.DataFrame({"dtype": "bf16", "is_causal": [True] * 14 + [False] * 2})
    problems = pd.concat([problems, problems.head(1).assign(dtype="fp32")], ignore_index=True)
    kept = _chosen(problems)
    assert len(kept) == MOST_TABLE_ROWS
    assert list(kept.index) == [*range(10), 14, 16]


def test_the_title_says_how_many_were_measured_where_not_all_are_shown(rows):
    problems = [rows.assign(batch_size=size) for size in range(1, MOST_TABLE_ROWS + 2)]
    (table,) = shapes(pd.concat(problems, ignore_index=True), {})
    measured = len({tuple(row) for row in pd.concat(problems)[facts.PROBLEM].to_numpy()})
    assert table.title.startswith(f"Shapes of real models, {MOST_TABLE_ROWS} of {measured}: ")
    assert shapes(rows, {})[0].title.startswith("Shapes of real models: ")


def test_shared_keys_are_a_problem_of_their_own_and_marked_in_its_shape(rows):
    alone = rows[rows["num_heads"] == 32].assign(query_heads_per_kv_head=1)
    labels = list(table_of(pd.concat([rows, alone], ignore_index=True))["batch×heads×length×head_dim"])
    assert labels.count("1×32:8×8192×128 causal") == labels.count("1×32×8192×128 causal") == 1


def test_fp16_alone_is_shown(rows):
    assert list(table_of(rows[rows["dtype"] == "fp16"])["dtype"]) == ["fp16"]


def test_the_share_of_a_matmul_is_that_of_its_own_precision(rows):
    cells = table_of(rows, bf16=800.0, tf32=450.0, fp32=60.0)
    at = rows[(rows["impl"] == "triton") & (rows["phase"] == "forward_backward") & (rows["dtype"] == "bf16")]
    rate = at["tflops_per_s"].iloc[0]
    assert cells.loc[cells["dtype"] == "bf16", RATE].iloc[0] == f"{rate:.0f} ({rate / 8:.0f}%)"
    assert list(table_of(rows)[RATE].str.contains("%").unique()) == [False]


@pytest.mark.parametrize(
    ("dtype", "peak_of", "rate"), [("bf16", "bf16", 800.0), ("fp32", "3×TF32", 150.0), ("fp32", "fp32", 60.0)]
)
def test_fp32_by_three_products_in_tf32_is_held_to_a_third_of_their_rate(dtype, peak_of, rate):
    products = {"bf16": 800.0, "tf32": 450.0, "fp32": 60.0}
    assert facts.product_rate(pd.Series({"dtype": dtype, "peak_of": peak_of}), products) == rate
    assert math.isnan(facts.product_rate(pd.Series({"dtype": dtype, "peak_of": peak_of}), {}))


def test_what_was_held_has_a_column(rows):
    both = rows[rows["phase"] == "forward_backward"].groupby("impl")["sustained_ms"].first()
    assert table_of(rows)[HELD].iloc[0] == f"{both['sdpa_cudnn'] / both['triton']:.2f}"


def test_rows_of_a_run_that_held_nothing_have_no_such_column(rows):
    before = rows.drop(columns=[name for name in rows if name.startswith("sustained")])
    assert HELD not in table_of(before)


def test_the_fullest_table_is_not_too_wide(rows):
    assert len(table_of(rows, bf16=800.0).columns) <= MAX_COLUMNS


def test_unstable_times_are_marked_and_tell_no_ratio(rows):
    cells = table_of(rows)
    rows.loc[(rows["impl"] == "triton") & (rows["seq_len"] == 8192), "status"] = "unstable"
    marked = table_of(rows)
    is_8192 = marked["batch×heads×length×head_dim"].str.contains("8192")
    assert list(marked.loc[is_8192, "ours"]) == list(cells.loc[is_8192, "ours"] + " (unstable)")
    assert set(marked.loc[is_8192, "ratio"]) == set(marked.loc[is_8192, "ratio, forward"]) == {"n/a"}
    assert "n/a" not in set(marked.loc[~is_8192, "ratio"])


def test_without_ours_or_without_a_peer_there_is_no_table(rows):
    assert shapes(rows[rows["impl"] == "triton"], {}) == []
    assert shapes(rows[rows["impl"] != "triton"].query("impl != 'tiled'"), {}) == []
