import pytest

from pipeline.compare.judge import compare_runs
from pipeline.compare.text import summary, write_comparison
from pipeline.report.intervals import UNDECIDED
from pipeline.registry import stages

from .test_judge import record, run, scaled
from .test_times import run as repeated

SAME_AS_A_CHANGE = "an effect of the host would look the same as a change."


def text_of(a, b, tolerance=0.05, **how):
    return write_comparison(compare_runs(a, b, stages(), tolerance), "one", "other", **how)


def part_of(text, title):
    return text.split(f"### {title}\n")[1].split("###")[0].split("\nB against A")[0]


def test_a_run_beside_itself_differs_in_nothing_however_loosely_its_times_are_known():
    loose = repeated(repeats=2)
    for each in loose:
        each["rows"][0]["median_ms"] *= 1 + 0.04 * each["cell"]["repeat"]
    text = text_of(loose, loose)
    assert (
        "\nNo time is faster or slower. 4 times are known too loosely to call the same within 2% (--all lists them).\n"
        in text
    )
    assert "### Times that differ" not in text
    assert "\nMachine, software, code and settings are the same.\n" in text
    assert part_of(text_of(loose, loose, show_all=True), "Times").count(UNDECIDED) == 4


def test_only_faster_and_slower_times_are_listed():
    unclear = scaled([record("large")], 1.2, spread=0.5)
    b = [*scaled([record("small")], 1.5), *scaled([record("xl")], 0.5), *unclear, record("medium")]
    text = text_of(run("small", "xl", "large", "medium"), b)
    listed = part_of(text, "Times that differ")
    assert [listed.count(f"size={size}") for size in ("small", "xl", "large", "medium")] == [2, 2, 0, 0]
    assert (
        "2 times are more than 5% apart, but known too loosely to call faster or slower (--all lists them)." in listed
    )


def test_a_long_table_is_cut_unless_all_is_asked_for(monkeypatch):
    monkeypatch.setattr("pipeline.compare.text.MOST_LINES", 1)
    sides = run("small"), scaled(run("small"), 2)
    cut, whole = (
        part_of(text_of(*sides, show_all=show_all), title)
        for show_all, title in ((False, "Times that differ"), (True, "Times"))
    )
    assert (cut.count("| slower "), whole.count("| slower ")) == (1, 2)
    assert "--all shows them." in cut


def test_a_long_list_is_counted_by_stage_unless_all_is_asked_for(monkeypatch):
    monkeypatch.setattr("pipeline.compare.text.MOST_LISTED", 2)
    sides = run("small"), run("small", "medium", "large", "xl")
    assert "\nCells only in B: timing 3 (--all lists them).\n" in text_of(*sides)
    assert part_of(text_of(*sides, show_all=True), "Cells only in B").count("| timing ") == 3
    failed = run("small", "medium", "large", "xl")
    for each in failed[1:]:
        for row in each["rows"]:
            row["status"] = "unstable"
    changed = f"Outcomes that changed: timing ok → unstable {3 * len(failed[0]['rows'])} (--all lists them)."
    assert changed in text_of(run("small", "medium", "large", "xl"), failed)


def test_equal_times_are_told_in_one_line():
    text = text_of(run(), run())
    assert "\n\nNo time is faster or slower.\n\n" in text
    assert "loosely" not in text


@pytest.mark.parametrize(("tolerance", "words"), [(0.05, "within 5%"), (0.125, "within 12.5%")])
def test_the_tolerance_is_a_number_wherever_it_judges(tolerance, words):
    text = text_of(run(), run(), tolerance, show_all=True)
    assert part_of(text, "Times").count(f"| {words} ") == 4
    assert words in part_of(text, "Times by stage")
    assert f"4 {words}" in text.splitlines()[-1]
    assert "tolerance" not in text


def test_how_many_differences_come_from_one_process_in_each_run_is_said():
    alone = text_of(run(), scaled(run(), 1.5))
    assert f"One process in each run measured all of these: {SAME_AS_A_CHANGE}" in alone
    several = repeated(), repeated(1.2, seed=1)
    assert SAME_AS_A_CHANGE not in text_of(*several)
    some = [[each for each in runs if each["cell"]["size"] != "xl" or each["cell"]["repeat"] == 1] for runs in several]
    assert f"One process in each run measured 1 of these: {SAME_AS_A_CHANGE}" in text_of(*some)
    one_sided = [several[0], [each for each in several[1] if each["cell"]["repeat"] == 1]]
    assert SAME_AS_A_CHANGE not in text_of(*one_sided)


def test_processes_are_not_called_repeats_and_only_intervals_are_of_95_percent():
    assert "| 95% interval, 3 and 3 processes |" in text_of(repeated(), repeated(1.2, seed=1))
    once = [each for each in repeated(1.2, seed=1) if each["cell"]["size"] != "xl" or each["cell"]["repeat"] == 1]
    alone = [each for each in repeated() if each["cell"]["size"] != "xl" or each["cell"]["repeat"] == 1]
    assert "| 95% interval, 1 process each |" in " ".join(text_of(alone, once).split())
    assert "95%" not in text_of(run(), scaled(run(), 1.5))


def test_the_summary_counts_median_times_of_both():
    comparison = compare_runs(run(), [*scaled([record("small")], 1.5), record("xl")], stages(), 0.05)
    assert summary(comparison) == (
        "B against A: 4 median times in both, 2 slower, 2 within 5%; geometric mean of B / A 1.22×."
    )
