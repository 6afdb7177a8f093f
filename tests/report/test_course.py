import pandas as pd
import pytest

from pipeline.registry import stages
from pipeline.report.course import PLACE, filled
from pipeline.report.formats import text
from pipeline.report.table import Table

TABLE = Table("times", "Times:", pd.DataFrame({"a": ["x"]}), [("a", "a", text)])


def test_a_part_takes_its_place_and_the_words_stay():
    written = filled("### problem\n\nWords.\n\n[[times]]\n\nMore.", "flash", {"times": TABLE})
    assert written.startswith("### problem\n\nWords.\n\nTimes:\n\n| a |")
    assert written.endswith("More.")


def test_a_part_right_below_a_paragraph_goes_on_with_it():
    written = filled("Words\nof a problem.\n[[times]]", "flash", {"times": TABLE})
    assert written.startswith("Words of a problem. Times:\n\n| a |")


def test_a_part_that_was_not_measured_is_told_with_its_command():
    assert "snakemake results/flash/cells.csv" in filled("[[times]]", "flash", {})


@pytest.mark.parametrize("name", list(stages()))
def test_the_notes_of_every_stage_are_words_and_their_places_lines(name):
    for note in stages()[name].folder.glob("*.md"):
        words = note.read_text(encoding="utf-8")
        assert words.strip()
        assert "[[" not in PLACE.sub("", words)
