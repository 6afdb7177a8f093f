import pandas as pd
import pytest

from pipeline.errors import UserError
from pipeline.registry import stages
from pipeline.report.table_rows import (
    complete,
    highest,
    in_order,
    ok,
    read_rows,
    readable,
    with_rate_quartiles,
)


def test_unstable_rows_carry_figures_and_the_others_do_not():
    rows = pd.DataFrame({"status": ["ok", "unstable", "oom", "skipped"]})
    assert list(ok(rows)["status"]) == ["ok", "unstable"]


def test_names_come_in_their_order_unknown_ones_last():
    rows = pd.DataFrame({"name": [*"zbacyx"]})
    assert list(in_order(rows, ["name"], {"name": ("c", "b")})["name"]) == [*"cbaxyz"]


def test_only_an_empty_cell_is_missing(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("device,implementation,note\nn/a,None,\n")
    rows = read_rows(path)
    assert rows.loc[0, ["device", "implementation"]].tolist() == ["n/a", "None"]
    assert rows["note"].isna().all()


def test_commits_and_versions_that_look_like_numbers_stay_texts(tmp_path):
    path = tmp_path / "cells.csv"
    path.write_text("commit,digest,cuda,seconds\n62535e0,0123456789012345,12.10,1\n")
    assert read_rows(path).iloc[0].tolist() == ["62535e0", "0123456789012345", "12.10", 1]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (None, "cannot read .*table.csv: No such file or directory"),
        (b"", "table.csv is no table: No columns"),
        (b"a\n1,2\n1,2,3\n", "table.csv is no table: Error tokenizing"),
        (b"\xfd7zXZ\n", "table.csv is no table: 'utf-8'"),
        (b"a,b\n1,2\n3,", "table.csv is cut off: its last line has no end"),
    ],
)
def test_what_is_no_whole_table_is_named_in_one_line(tmp_path, content, complaint):
    path = tmp_path / "table.csv"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=complaint) as raised:
        read_rows(path)
    assert "\n" not in str(raised.value)


def test_texts_become_one_line_each_and_figures_stay(tmp_path):
    path = tmp_path / "table.csv"
    pd.DataFrame(
        {"kernel": ["two\nlines", None, "\x1b[2J"], "ms": [1.5, 2.0, None], "causal": [True, False, True]}
    ).to_csv(path, index=False)
    rows = read_rows(path)
    assert rows["kernel"].tolist()[::2] == ["two lines", r"\x1b[2J"]
    assert rows["kernel"].isna().tolist() == [False, True, False]
    assert (rows["ms"].dtype, rows["causal"].dtype) == (float, bool)


def test_texts_of_a_list_become_one_line_each():
    assert readable(pd.DataFrame({"reasons": [["two\nlines", 3]]}))["reasons"].tolist() == [["two lines", 3]]


def test_columns_that_a_stage_declares_are_there_though_no_row_fills_them():
    rows = complete(pd.DataFrame({"size": ["small"]}), stages()["timing"].row_types)
    assert {"size", "median_ms"} <= {*rows}
    assert rows["median_ms"].isna().all()


def test_a_rate_is_highest_where_the_time_is_shortest():
    rows = pd.DataFrame({"median_ms": [4.0], "q1_ms": [2.0], "q3_ms": [8.0], "rate": [10.0]})
    rates = with_rate_quartiles(rows, "rate").iloc[0]
    assert (rates["q1_rate"], rates["median_rate"], rates["q3_rate"]) == (5.0, 10.0, 20.0)


def test_the_highest_figure_is_that_of_rows_that_have_one():
    rows = pd.DataFrame({"dtype": ["bf16", "bf16", "fp32", None], "rate": [700.0, 777.0, None, 900.0]})
    assert highest(rows, "rate", by="dtype") == {"bf16": 777.0}
    assert highest(rows, "speed", by="dtype") == highest(pd.DataFrame(), "rate", by="dtype") == {}
