import json
from dataclasses import asdict

import numpy as np
import pandas as pd

from pipeline.registry import stages
from pipeline.report.all_rows import LONGEST_TEXT, meanings, row_table

ROWS = pd.DataFrame(
    {
        "status": ["ok", "ok"],
        "size": ["xl", "small"],
        "batch": [4, 4],
        "median_ms": [1.23456789, np.nan],
        "samples_ms": [[1.0, 2.0], np.nan],
        "reason": [np.nan, np.nan],
        "capped": [True, None],
        "text": ["x" * 1000, "y"],
    }
)


def test_a_table_has_columns_that_differ_and_says_what_is_the_same_in_all_rows():
    table = row_table(ROWS, {"median_ms": "median", "samples_ms": "all samples"})
    assert table.same == {"batch": 4}
    assert table.columns["median_ms"] == [1.23457, None]
    assert table.columns["capped"] == [True, None]
    assert table.columns["status"] == ["ok", "ok"]  # by which rows are filtered
    assert table.meanings == {"median_ms": "median"}
    assert len(table.columns["text"][0]) == LONGEST_TEXT + 1
    json.dumps(asdict(table), allow_nan=False)


def test_lists_and_empty_columns_are_left_out():
    assert not {"samples_ms", "reason"} & {*row_table(ROWS, {}).columns, *row_table(ROWS, {}).same}


def test_a_single_row_is_shown_whole():
    table = row_table(ROWS.head(1), {})
    assert table.same == {}
    assert table.columns["batch"] == [4]


def test_every_stage_says_what_its_columns_mean():
    for stage in stages().values():
        found = meanings(stage)
        assert set(found) == set(stage.row_types.column_names()), stage.name
        assert all(found.values())
