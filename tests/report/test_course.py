import pandas as pd
import pytest

from pipeline.registry import stages
from pipeline.report.course import PLACE, filled
from pipeline.report.table import Table, named

ROWS = pd.DataFrame({"a": ["x"]})
TABLE = Table("times", "Times:", ROWS, named(ROWS, "a"))


@pytest.mark.parametrize(
    ("text", "written"),
    [
        (
            "### problem\n\nWords.\n\n[[times]]\n\nMore.",
            "### problem\n\nWords.\n\nTimes:\n\n| a |\n| :-- |\n| x |\n\nMore.",
        ),
        # What stands right below a paragraph goes on with it.
        ("Words\nof a problem.\n[[times]]", "Words of a problem. Times:\n\n| a |\n| :-- |\n| x |"),
    ],
)
def test_a_part_takes_its_place_and_the_words_stay(text, written):
    assert filled(text, "flash", {"times": TABLE}) == written


def test_a_part_that_was_not_measured_is_told_with_its_command():
    assert "snakemake results/flash/cells.csv" in filled("[[times]]", "flash", {})


@pytest.mark.parametrize("name", list(stages()))
def test_the_notes_of_every_stage_are_words_and_their_places_lines(name):
    for note in stages()[name].folder.glob("*.md"):
        words = note.read_text(encoding="utf-8")
        assert words.strip()
        assert "[[" not in PLACE.sub("", words)
