import pandas as pd
import pytest

from pipeline.report.intervals import RepeatSpread
from pipeline.report.outcomes import clear_gain, not_measured, nothing_measured
from pipeline.report.page_parts import Section, write


def rows(*outcomes):
    return pd.DataFrame(outcomes, columns=["impl", "status", "reason"])


OK = ("ours", "ok", None)
SKIPPED = ("flash", "skipped", "needs bf16")
WRONG = ("flex", "wrong", "off by 3")
OOM = ("eager", "oom", "CUDA out of memory")


def test_where_every_row_has_a_figure_nothing_is_said():
    assert not_measured(rows(OK, OK), "impl") == ""


def test_rows_without_a_figure_are_counted_with_the_most_frequent_reasons():
    said = not_measured(rows(OK, WRONG, WRONG, OOM), "impl")
    assert said == ("3 of 4 figures are missing: 2 times wrong, off by 3 (flex); CUDA out of memory (eager).")
    assert not_measured(rows(OK, OOM), "impl") == "1 of 2 figures is missing: CUDA out of memory (eager)."


def test_of_many_reasons_two_are_told_and_the_others_counted():
    said = not_measured(rows(WRONG, WRONG, OOM, OOM, ("a", "wrong", "x"), ("b", "wrong", "y")), "impl")
    assert said.endswith("(flex); 2 times CUDA out of memory (eager); 2 for other reasons.")


def test_reasons_that_differ_in_their_own_numbers_are_one():
    slow = [("tiled", "wrong", f"one call takes {seconds} s, above the limit of 1 s") for seconds in (2.5, 3.5)]
    assert not_measured(rows(*slow), "impl").startswith("2 of 2 figures are missing: wrong, one call takes ")


def test_what_is_unstable_or_what_the_machine_lacks_the_page_says_once_for_all_stages():
    assert not_measured(rows(OK, SKIPPED, ("tiled", "unstable", "median known to 7% only")), "impl") == ""


def test_nothing_measured_gives_the_reason_if_there_is_one():
    assert nothing_measured(rows(SKIPPED, SKIPPED, OOM)) == "Nothing was measured: needs bf16."
    assert nothing_measured(rows(("a", "oom", None))) == "Nothing was measured."


def test_of_a_long_reason_the_first_sentence_is_enough():
    assert not_measured(rows(("a", "wrong", "Expected bf16. Got fp32.")), "impl").endswith("wrong, Expected bf16 (a).")


def test_reasons_are_escaped_on_the_page(tmp_path):
    failed = rows(OK, ("a", "wrong", "x | y"))
    section = Section("Which?", "", nothing_measured(failed), parts=[not_measured(failed, "impl")])
    text = write(section, "flash", [], tmp_path, trust={}).text
    assert text.count("x &#124; y") == 2
    assert "|" not in text


def timed(median, half_spread=0.01):
    return pd.Series({"median_ms": median, "q1_ms": median - half_spread, "q3_ms": median + half_spread})


def test_a_gain_is_clear_from_a_tenth_on_where_quartiles_do_not_overlap():
    assert clear_gain(timed(1.2), timed(1.0)) == pytest.approx(1.2)
    assert clear_gain(timed(1.05), timed(1.0)) is None
    assert clear_gain(timed(1.2, 0.2), timed(1.0, 0.2)) is None
    assert clear_gain(timed(1.0), timed(1.2)) is None


def test_of_an_unstable_figure_no_gain_is_clear():
    assert clear_gain(timed(1.2), timed(1.0)) is not None
    assert clear_gain(timed(1.2), pd.concat([timed(1.0), pd.Series({"status": "unstable"})])) is None


def test_where_there_are_repeats_the_verdict_and_not_the_quartiles_says_what_is_clear():
    repeated = [
        pd.concat([timed(ms), pd.Series({"samples_of_repeats": [[ms] * 10] * 3, "repeat_spread": spread})])
        for spread in (RepeatSpread(0.001, 4), RepeatSpread(0.5, 4))
        for ms in (1.2, 1.0)
    ]
    assert clear_gain(*repeated[:2]) == pytest.approx(1.2)
    assert clear_gain(*repeated[2:]) is None
