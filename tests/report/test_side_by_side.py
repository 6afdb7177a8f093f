import pandas as pd
import pytest

from pipeline.report.side_by_side import against

WHOLE = pd.DataFrame(
    {"median_ms": [12.0, 10.0], "q1_ms": [11.9, 9.9], "q3_ms": [12.1, 10.1]}, index=["bucketed", "overlap"]
)


def test_a_slower_thing_is_that_much_beyond_the_other():
    found = against(WHOLE, "bucketed", "overlap", tolerance=0.05)
    assert found["word"] == "slower than"
    assert (found["ratio"], found["beyond"]) == (pytest.approx(10 / 12), pytest.approx(12 / 10 - 1))


def test_nothing_is_held_against_what_is_missing():
    assert against(WHOLE, "bucketed", "naive", tolerance=0.05) == {}
