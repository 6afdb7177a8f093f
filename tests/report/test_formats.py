import pandas as pd
import pytest

from pipeline.report.formats import interval


@pytest.mark.parametrize(("low", "high", "written"), [(1.004, 1.2, "1.004 to 1.20"), (0.9, 0.997, "0.90 to 0.997")])
def test_an_interval_shows_on_which_side_of_one_it_ends(low, high, written):
    assert interval(pd.Series({"ratio": 1.1, "low": low, "high": high})) == f"1.10× ({written})"
