from dataclasses import asdict

import pandas as pd
import pytest

from pipeline.cells.disk import WholeFile
from pipeline.cells.record import write_record
from pipeline.cells.stage import Stage
from pipeline.registry import stages
from pipeline.report.baselines import write_baselines
from pipeline.stages.timing.cell import Cell

from ..records import record, timed_row

PAIRS = pd.DataFrame(
    {
        "what": ["forward, xl", "backward, xl"],
        "unit": "ms",
        "theirs": [10.0, 20.0],
        "ours": [20.0, 10.0],
        "write_up": "write-up 1 (A100)",
        "note": ["taken | cold", None],
    }
)


@pytest.fixture
def records(tmp_path):
    path = tmp_path / "cell.json"
    rows = [timed_row(phase) for phase in ("forward", "backward", "train_step")]
    write_record(WholeFile(path), record(cell=asdict(Cell(size="xl")), rows=rows))
    return [path]


def page(records, tmp_path):
    write_baselines(stages(), records, tmp_path / "baselines.md", tmp_path / "figures/baselines")
    return (tmp_path / "baselines.md").read_text()


def test_a_write_up_has_a_row_with_how_ours_stand_to_theirs(records, tmp_path, monkeypatch):
    monkeypatch.setattr(Stage, "baseline_pairs", lambda _stage, _rows: PAIRS)
    text = page(records, tmp_path)
    (row,) = [line for line in text.splitlines() if line.startswith("| write-up")]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells == ["write-up 1 (A100)", "ms", "2", "1.0", "0.50 (backward, xl)", "2.0 (forward, xl)"]
    assert "- write-up 1 (A100): taken | cold." in text
    assert (tmp_path / "figures/baselines/theirs_and_ours.svg").is_file()


def test_the_figures_of_a_stage_stand_beside_those_of_its_records(records, tmp_path):
    assert "## timing" in page(records, tmp_path)


def test_only_the_first_of_repeats_stands_beside_theirs(records, tmp_path):
    write_record(WholeFile(records[0]), record(cell=asdict(Cell(size="xl", repeat=2)), rows=[timed_row()]))
    assert "None of what they published was measured here." in page(records, tmp_path)


def test_where_nobody_measured_the_same_the_page_says_so(records, tmp_path, monkeypatch):
    monkeypatch.setattr(Stage, "baseline_pairs", lambda _stage, _rows: PAIRS.head(0))
    assert "None of what they published was measured here." in page(records, tmp_path)


@pytest.mark.parametrize("name", stages())
def test_a_stage_of_which_nothing_was_measured_has_none_of_theirs(name, tmp_path):
    stage = stages()[name]
    cell, settings = stage.cell_type(), stage.settings_type()
    rows = [{**key, "status": "skipped", "reason": "no GPU"} for key in cell.row_keys()]
    path = tmp_path / "cell.json"
    write_record(WholeFile(path), record(stage=name, cell=asdict(cell), settings=asdict(settings), rows=rows))
    assert "None of what they published" in page([path], tmp_path)
