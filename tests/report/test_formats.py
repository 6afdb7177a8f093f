import pandas as pd
import pytest

from pipeline.report.formats import interval, parameters, written
from pipeline.report.section import Change, say

STEP = {"median_ms": 1500.0, "peak_bytes": 2e9, "name": "a | b"}


@pytest.mark.parametrize(("low", "high", "shown"), [(1.004, 1.2, "1.004 to 1.20"), (0.9, 0.997, "0.90 to 0.997")])
def test_an_interval_shows_on_which_side_of_one_it_ends(low, high, shown):
    assert interval(pd.Series({"ratio": 1.1, "low": low, "high": high})) == f"1.10× ({shown})"
    assert interval(pd.Series({"ratio": 0.996, "low": low, "high": high})) == f"0.996× ({shown})"


@pytest.mark.parametrize(
    ("value", "shown"), [(1.2e9, "1.20B"), (3.5e8, "350M"), (2e12, "2.00T"), (4000, "4.00k"), (7, "7")]
)
def test_parameters_are_counted_in_the_units_of_model_names(value, shown):
    assert parameters(value) == shown


def test_a_template_is_filled_row_by_row_and_none_if_a_value_is_missing():
    rows = pd.DataFrame({"name": ["x", "y"], "median_ms": [1500.0, None], "tokens": [4096, 4096]})
    assert written(rows, "{name}: {median_ms:ms}, {tokens:,}") == ["x: 1.50 s, 4,096", None]


def test_a_field_of_a_sentence_may_name_its_form_and_its_text_is_escaped():
    assert say("**{step[median_ms]:ms}** with {step[name]}", step=STEP) == "**1.50 s** with a &#124; b"


@pytest.mark.parametrize(("peak", "after"), [(1e9, "750 ms, 1.00 GB"), (None, "750 ms")])
def test_a_change_of_two_steps_has_both_times_and_the_memory_that_is_known(peak, after):
    new = pd.Series(STEP | {"median_ms": 750.0, "peak_bytes": peak, "verdict": "faster", "repeats": 3})
    change = Change.between("what", "where", pd.Series(STEP | {"repeats": 1}), new)
    assert (change.before, change.after, change.judged["verdict"]) == ("1.50 s, 2.00 GB", after, "faster")
    assert change.judged["repeats"] == 1
