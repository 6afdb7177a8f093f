import pandas as pd
import pytest

from pipeline.registry import stages
from pipeline.report.course import PLACE, filled, page
from pipeline.report.markup import Markdown
from pipeline.report.section import Section, StageReport
from pipeline.report.table import Table, columns_of

ROWS = pd.DataFrame({"a": ["x"]})
TABLE = Table("times", "Times:", ROWS, columns_of(ROWS, "a"))


def test_a_part_replaces_its_placeholder_and_code_stays():
    assert filled("As code:\n\n    a = 1\n    b = 2", "flash", {}).endswith("\n\n    a = 1\n    b = 2")
    # Of several parts in one place, those that were measured are shown.
    assert filled("[[chart]]\n[[times]]", "flash", {"times": TABLE}) == TABLE.markdown()


@pytest.mark.parametrize("gap", ["\n", "\n\n"])
def test_text_captions_and_tables_are_separate_blocks(gap):
    written = filled(f"### head\n\nWords\nof a problem.{gap}[[times]]\n\nMore.", "flash", {"times": TABLE})
    assert written.split("\n\n") == ["### head", "Words of a problem.", "Times:", "| a |\n| :-- |\n| x |", "More."]


def test_unmeasured_parts_become_one_line_with_the_command_and_lose_their_text():
    why, notice, more = filled("Why.\n\n[[times]]\n\nIt shows all.\n[[chart]]\n\nMore.", "flash", {}).split("\n\n")
    assert (why, more) == ("Why.", "More.")
    assert "snakemake results/flash/cells.csv" in notice


@pytest.mark.parametrize("name", list(stages()))
def test_stage_notes_are_not_empty_and_placeholders_are_whole_lines(name):
    for note in stages()[name].folder.glob("*.md"):
        words = note.read_text(encoding="utf-8")
        assert words.strip()
        assert "[[" not in PLACE.sub("", words)


def test_the_students_own_results_appear_at_the_first_problem_of_their_stage():
    users = Table("users", "Yours:", ROWS, columns_of(ROWS, "a"))
    reports = [
        StageReport(stages()["flash"], Section(""), mine, Markdown(), ROWS.assign(dtype="bf16"))
        for mine in ([], [users])
    ]
    without_users, with_users = (page([each]) for each in reports)
    assert "Yours:" not in without_users
    places = [with_users.index(words) for words in ("### flash_forward", "Yours:\n\n| a |", "### leaderboard")]
    assert places == sorted(places)
