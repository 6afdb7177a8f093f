import re
from pathlib import Path

import pytest

from pipeline.cells.rows import columns
from pipeline.describe import described
from pipeline.registry import stage, stages

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("name", stages())
def test_the_results_readme_describes_every_stage_as_declared(name):
    text = (ROOT / "results/README.md").read_text()
    assert re.sub("-+", "-", re.sub(" +", " ", described(stage(name)))) in text, "README.md there says what to run"


def test_every_column_has_a_meaning_that_does_not_break_tables():
    for each in stages().values():
        lines = [line for line in described(each).splitlines() if line.startswith("|")]
        assert all(line.count("|") == 4 for line in lines)
        assert not [line for line in lines if line.split("|")[2].strip() == ""]


@pytest.mark.parametrize("width", [80, 120])
def test_terminal_tables_fit_the_width_and_have_every_column(width):
    for each in stages().values():
        docs = {line for part in described(each).split("\n\n") if "|" not in part for line in part.splitlines()}
        lines = described(each, width).splitlines()
        assert [line for line in lines if len(line) > width and line not in docs] == []
        for row_type in each.row_types.types.values():
            assert set(columns(row_type)) <= {line.split(" ")[0] for line in lines}
