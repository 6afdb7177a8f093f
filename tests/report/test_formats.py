import pandas as pd
import pytest

from pipeline.report.formats import interval, written
from pipeline.report.section import say


@pytest.mark.parametrize(("low", "high", "shown"), [(1.004, 1.2, "1.004 to 1.20"), (0.9, 0.997, "0.90 to 0.997")])
def test_an_interval_shows_on_which_side_of_one_it_ends(low, high, shown):
    assert interval(pd.Series({"ratio": 1.1, "low": low, "high": high})) == f"1.10× ({shown})"


def test_a_template_is_filled_row_by_row_and_empty_where_a_value_is_missing():
    rows = pd.DataFrame({"name": ["x", "y"], "median_ms": [1500.0, None], "tokens": [4096, 4096]})
    assert written(rows, "{name}: {median_ms:ms}, {tokens:,}") == ["x: 1.50 s, 4,096", None]


def test_a_sentence_escapes_what_a_form_writes():
    row = pd.Series({"name": "a|b", "median_ms": 20.0})
    assert say("*{row[name]}* {row[median_ms]:ms}", row=row) == "*a&#124;b* 20.0 ms"
