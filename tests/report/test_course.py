import pandas as pd
import pytest

from pipeline.registry import stages
from pipeline.report.course import PLACE, filled, page
from pipeline.report.markup import Markdown
from pipeline.report.section import Section, Told
from pipeline.report.table import Table, named

ROWS = pd.DataFrame({"a": ["x"]})
TABLE = Table("times", "Times:", ROWS, named(ROWS, "a"))


def test_a_part_takes_its_place_and_code_stays():
    assert filled("As code:\n\n    a = 1\n    b = 2", "flash", {}).endswith("\n\n    a = 1\n    b = 2")
    # Of parts in one place those that are there are shown.
    assert filled("[[chart]]\n[[times]]", "flash", {"times": TABLE}) == TABLE.markdown()


@pytest.mark.parametrize("gap", ["\n", "\n\n"])
def test_words_captions_and_tables_stand_apart(gap):
    written = filled(f"### head\n\nWords\nof a problem.{gap}[[times]]\n\nMore.", "flash", {"times": TABLE})
    assert written.split("\n\n") == ["### head", "Words of a problem.", "Times:", "| a |\n| :-- |\n| x |", "More."]


def test_a_part_that_was_not_measured_is_told_once_with_its_command_and_words_about_it_alone_go_with_it():
    why, told, more = filled("Why.\n\n[[times]]\n\nIt shows all.\n[[chart]]\n\nMore.", "flash", {}).split("\n\n")
    assert (why, more) == ("Why.", "More.")
    assert "snakemake results/flash/cells.csv" in told


@pytest.mark.parametrize("name", list(stages()))
def test_the_notes_of_every_stage_are_words_and_their_places_lines(name):
    for note in stages()[name].folder.glob("*.md"):
        words = note.read_text(encoding="utf-8")
        assert words.strip()
        assert "[[" not in PLACE.sub("", words)


def test_what_the_student_brought_stands_at_the_first_problem_of_its_stage():
    own = Table("own", "Yours:", ROWS, named(ROWS, "a"))
    told = [Told(stages()["flash"], Section(""), mine, Markdown(), ROWS.assign(dtype="bf16")) for mine in ([], [own])]
    alone, beside = (page([each]) for each in told)
    assert "Yours:" not in alone
    places = [beside.index(words) for words in ("### flash_forward", "Yours:\n\n| a |", "### leaderboard")]
    assert places == sorted(places)
