import pandas as pd
import pytest

from pipeline.report.formats import count, number, text
from pipeline.report.table import MOST_ROWS, Table, columns_of

COLUMNS = [("name", "operation", text), ("ms", "median_ms", number), ("peer's ms", "median_ms_peer", number)]
UNSTABLE = {"operation": "a", "status": "unstable", "median_ms": 1.0, "median_ms_peer": 2.0, "n": 3}


def lines(rows, columns=COLUMNS, **more):
    written = Table("t", "A caption:", pd.DataFrame(rows), columns, **more).markdown()
    return [line for line in written.splitlines() if line.startswith("|")]


@pytest.mark.parametrize(
    ("row", "line"),
    [
        # An outcome replaces a missing value, each side with its own; if nothing was measured, it is a dash.
        ({"operation": "a", "status": "oom", "status_peer": "ok", "median_ms_peer": 2.0}, "| a | OOM | 2.00 | OOM |"),
        ({"operation": None, "status": "ok", "median_ms": float("nan")}, "| – | – | – | – |"),
        # Times of an unstable row are marked; counts are not, nor is `operation`, whose name contains "ratio".
        (UNSTABLE, "| a | ~1.00 | ~2.00 | 3 |"),
        (UNSTABLE | {"status_peer": "ok"}, "| a | ~1.00 | 2.00 | 3 |"),
        (UNSTABLE | {"operation": "a | *b* <script>"}, "| a &#124; &#42;b&#42; &#60;script> | ~1.00 | ~2.00 | 3 |"),
    ],
)
def test_a_cell_shows_its_value_or_its_outcome(row, line):
    assert lines([row], [*COLUMNS, ("n", "n", count)])[2] == line


def test_a_long_table_is_cut_and_says_so():
    rows = [{"operation": str(place), "median_ms": 1.0, "median_ms_peer": 1.0} for place in range(MOST_ROWS + 5)]
    table = Table("t", "", pd.DataFrame(rows), COLUMNS)
    assert table.markdown().startswith("| name |")  # without a caption
    assert len(lines(rows)) == 2 + MOST_ROWS
    assert "left out: 5." in table.markdown()
    assert len(lines(rows, all_rows=True)) == 2 + MOST_ROWS + 5


def test_an_across_column_gives_one_line_per_name_and_one_cell_per_value():
    columns = [*COLUMNS[:1], ("context", "context", count), *COLUMNS[1:]]
    rows = [
        {"operation": "a", "context": 1024, "status": "oom", "status_peer": "oom"},
        {"operation": "a", "context": 128, "median_ms": 1.0, "median_ms_peer": 1.0},
        {"operation": "b", "context": 1024, "median_ms": 3.0, "status_peer": "oom"},
    ]
    assert lines(rows, columns, all_rows=True, across="context") == [
        "| name | context 128 | context 1,024 |",
        "| :-- | --: | --: |",
        "| a | 1.00 / 1.00 | OOM |",
        "| b | – | 3.00 / OOM |",
    ]


def test_the_name_of_a_column_decides_its_heading_and_format():
    row = {"size": "xl", "median_ms_peer": 20.0, "tokens_per_s_tuned": 11238.4, "share_pct": 33.3, "kept_bytes": 2e9}
    row |= {"n": 3.0, "rate": 1.2345, "done": True, "later_ms": 2.5}
    assert lines([row], columns_of(pd.DataFrame([row]), " ".join(row))) == [
        "| model | other, ms | tokens/s | share | kept | n | rate | done | later, ms |",
        "| :-- | --: | --: | --: | --: | --: | --: | --: | --: |",
        "| xl | 20.0 | 11,238 | 33% | 2.00 GB | 3 | 1.23 | True | 2.50 |",
    ]
