import sys
from dataclasses import asdict

import pytest

from pipeline.cells.rows import outcome_rows
from pipeline.cells.stage import FILES, RUN_COLUMNS, Stage
from pipeline.registry import stages

from ..complaints import complaint

CELL = '''\
"""How warm does it get?"""
from dataclasses import dataclass
from pipeline.cells.fields import axis

SPLIT_AXIS = "size"

@dataclass(frozen=True)
class Cell:
    size: str = axis("small", allowed=("small",))
    gpus = 1
    row_keys = lambda self: [{}]

@dataclass(frozen=True)
class Settings:
    steps: int = axis(1)
'''
ROWS = """\
from dataclasses import dataclass
from pipeline.cells.rows import Row, RowTypes, column

@dataclass(frozen=True, kw_only=True)
class Warmth(Row):
    KEYS = ("place",)
    place: str = column("where")
    warmth_c: float = column("how warm")

ROW_TYPES = RowTypes.one(Warmth)
"""


@pytest.fixture
def warmth(tmp_path, monkeypatch):
    folder = tmp_path / "probes/warmth"
    (folder / "report").mkdir(parents=True)
    (tmp_path / "probes/__init__.py").write_text("")
    for name in ("__init__.py", *FILES):
        (folder / name).write_text("")
    (folder / "cell.py").write_text(CELL)
    (folder / "rows.py").write_text(ROWS)
    monkeypatch.syspath_prepend(tmp_path)
    yield Stage("warmth", "probes.warmth")
    for name in [name for name in sys.modules if name.split(".")[0] == "probes"]:
        del sys.modules[name]


def complaint_of(stage):
    return complaint(stage.check, ["warmth"]).removeprefix(f"{stage.folder}/")


def test_a_stage_with_all_its_parts_is_complete(warmth):
    warmth.check(["warmth"])
    assert warmth.question == "How warm does it get?"
    assert warmth.table_columns == (*("size", "place", "status", "reason", "warmth_c", "setting_steps"), *RUN_COLUMNS)


@pytest.mark.parametrize("stage", stages().values(), ids=stages())
def test_every_stage_is_complete_and_its_rows_without_values_are_valid(stage):
    stage.check(stages())
    cell = stage.cell_type()
    stage.row_types.check(asdict(cell), outcome_rows(cell, "skipped", "no GPU"))
    assert {name for key in cell.row_keys() for name in key} <= set(stage.row_types.key_columns())


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_of_a_stage_is_reported(warmth, name):
    (warmth.folder / name).unlink()
    assert complaint_of(warmth) == f" has no {name}, which every stage needs"


@pytest.mark.parametrize(
    ("file", "old", "new", "expected"),
    [
        ("cell", "SPLIT_AXIS", "SPLIT", " has no SPLIT_AXIS"),
        ("cell", '"""How warm does it get?"""', "", " needs a docstring: its first line is the stage's question"),
        ("cell", "gpus = 1", "gpu = 1", ": Cell has no gpus, how many GPUs a cell uses, if there are any"),
        ("cell", "row_keys", "keys", ": Cell has no row_keys, the keys of the rows of a cell that could not be meas"),
        ("cell", 'AXIS = "size"', 'AXIS = "precision"', ": SPLIT_AXIS must be one of size"),
        ("cell", "SPLIT", 'READS = ("heat",)\nSPLIT', ": READS has unknown stage 'heat': must be one of warmth"),
        ("cell", "    gpus", '    place: str = axis("a")\n    gpus', ": two columns of its tables are called 'place'"),
        ("cell", "    gpus", '    torch: str = axis("a")\n    gpus', ": two columns of its tables are called 'torch'"),
        ("rows", '("place",)', '("town",)', ": Warmth: KEYS has 'town', which it does not declare"),
        ("rows", 'column("how warm")', "0.0", ": Warmth: warmth_c is not a column: declare"),
        ("rows", "ROW_TYPES =", "ROWS =", " has no ROW_TYPES"),
    ],
)
def test_a_wrong_declaration_of_a_stage_is_reported(warmth, file, old, new, expected):
    path = warmth.folder / f"{file}.py"
    path.write_text(path.read_text().replace(old, new))
    assert complaint_of(warmth).removeprefix(path.name).startswith(expected)
