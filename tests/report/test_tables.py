import numpy as np
import pandas as pd
import pytest

from pipeline.report import tables
from pipeline.report.markup import Markdown


@pytest.fixture
def rows():
    return pd.DataFrame(
        {
            "size": ["small", "small", "2.7B", "2.7B"],
            "pass": ["forward", "backward", "forward", "backward"],
            "status": ["ok", "unstable", "oom", "skipped"],
            "reason": [np.nan, "noise", "CUDA out of memory", "no CUDA"],
            "median_ms": [12.34, 30.0, np.nan, np.nan],
            "q1_ms": [12.0, 29.0, np.nan, np.nan],
            "q3_ms": [12.5, 31.0, np.nan, np.nan],
            "mean_ms": [12.345, 30.1, np.nan, np.nan],
            "std_ms": [0.123, 4.2, np.nan, np.nan],
        }
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [(1234.5, "1,234"), (12.345, "12.3"), (0.0012345, "0.00123"), (9.999, "10.0"), (0, "0"), (np.nan, "n/a")],
)
def test_a_number_has_three_significant_figures_and_no_exponent(value, text):
    assert tables.significant(value) == text


def test_a_row_without_a_figure_shows_its_outcome(rows):
    assert list(tables.number_cells(rows, "median_ms")) == ["12.3", "30.0 (unstable)", "OOM", "skipped: no CUDA"]
    assert set(tables.number_cells(rows.assign(status="skipped", reason=np.nan), "median_ms")) == {"skipped"}


def test_a_time_has_its_quartiles_beside_it_to_four_figures(rows):
    assert list(tables.median_cells(rows))[:2] == ["12.34 [12.00, 12.50]", "30.00 [29.00, 31.00] (unstable)"]


def test_numbers_stand_to_the_right_and_names_to_the_left():
    text = tables.markdown(pd.DataFrame({"size": ["small", "2.7B"], "time": ["OOM", "12.3 ± 0.1"]}))
    assert "1.50" in tables.markdown(pd.DataFrame({"time": ["1.50"]}))
    left, right = text.splitlines()[1].strip("|").split("|")
    assert left.startswith(":")
    assert right.endswith(":")


def test_cells_and_heads_are_escaped_unless_they_are_markdown_already():
    table = pd.DataFrame({"a|b": ["<b>", "x"], "kernel": [Markdown("`f<int>`"), "–"]})
    lines = tables.markdown(table).splitlines()
    assert [line.split("|")[1].strip() for line in lines[::2]] == ["a&#124;b", "&#60;b>"]
    assert "| `f<int>` |" in lines[2]
    assert {line.count("|") for line in lines} == {3}
