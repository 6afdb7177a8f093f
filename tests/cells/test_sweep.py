import sys

import pytest

import pipeline.stages
from pipeline.cells import sweep
from pipeline.errors import UserError
from pipeline.stages.allreduce import cell as allreduce
from pipeline.stages.timing.cell import Cell


def test_a_grid_is_the_product_of_its_axes_and_defaults():
    cells = sweep.expand("timing", [{"size": ["small", "xl"], "precision": ["fp32", "bf16"]}], "grid")
    assert [(cell.size, cell.precision) for cell in cells] == [
        ("small", "fp32"),
        ("small", "bf16"),
        ("xl", "fp32"),
        ("xl", "bf16"),
    ]
    assert {cell.context_length for cell in cells} == {Cell().context_length}


def test_a_cell_that_two_grids_share_is_measured_once():
    grids = [{"size": ["small"]}, {"size": "small", "warmup_steps": [0, 5]}]
    assert sweep.expand("timing", grids, "grid") == [Cell(), Cell(warmup_steps=0)]


def test_an_unknown_axis_is_named():
    with pytest.raises(UserError, match="timing grid: unknown key 'sizes'"):
        sweep.expand("timing", [{"sizes": ["small"]}], "timing grid")


def test_every_stage_has_its_place_in_the_reading_order():
    names = sweep.stage_names()
    assert "timing" in names
    assert names == [name for name in pipeline.stages.READING_ORDER if name in names]


def test_rows_are_told_apart_by_the_declared_columns_or_by_those_of_the_default_cells_keys():
    assert sweep.row_columns("allreduce") == allreduce.ROW_COLUMNS
    assert sweep.row_columns("timing") == ("pass", "clock")


@pytest.mark.parametrize("stage", sweep.stage_names())
def test_the_columns_of_rows_hold_those_of_a_row_that_could_not_be_measured(stage):
    keys = sweep.declaration(stage).Cell().row_keys()
    assert {name for key in keys for name in key} <= set(sweep.row_columns(stage))


def test_an_unknown_stage_is_named_with_the_known_ones():
    with pytest.raises(UserError, match=r"unknown stage 'timings'; known are .*timing"):
        sweep.declaration("timings")


@pytest.fixture
def stages(tmp_path, monkeypatch):
    """A folder of stages with one, `warmth`, that has all its parts."""
    folder = tmp_path / "stages"
    (folder / "warmth/report").mkdir(parents=True)
    for name in ("__init__.py", *sweep.FILES):
        (folder / "warmth" / name).write_text("")
    (folder / "warmth/cell.py").write_text(CELL)
    monkeypatch.setattr(pipeline.stages, "__path__", [str(folder)])
    monkeypatch.setattr(pipeline.stages, "READING_ORDER", ("warmth",))
    yield folder
    sys.modules.pop("pipeline.stages.warmth.cell", None)
    sys.modules.pop("pipeline.stages.warmth", None)


CELL = '''\
"""How warm does it get?"""
from dataclasses import dataclass
from pipeline.cells.fields import axis

SPLIT_AXIS = "size"


@dataclass(frozen=True)
class Cell:
    size: str = axis("small", allowed=("small",))


@dataclass(frozen=True)
class Settings:
    pass
'''


def test_a_stage_with_all_its_parts_is_complete(stages):
    assert sweep.stage_names() == ["warmth"]
    sweep.check_stage("warmth")


@pytest.mark.parametrize("stage", sweep.stage_names())
def test_every_stage_is_complete(stage):
    sweep.check_stage(stage)


@pytest.mark.parametrize("name", sweep.FILES)
def test_a_file_that_a_stage_lacks_is_named(stages, name):
    (stages / "warmth" / name).unlink()
    with pytest.raises(UserError) as raised:
        sweep.check_stage("warmth")
    assert str(raised.value) == f"{stages}/warmth/ has no {name}, which every stage has"


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("SPLIT_AXIS", "SPLIT", "has no SPLIT_AXIS"),
        ("class Settings", "class Setting", "has no Settings"),
        ('"""How warm does it get?"""', "", "has no docstring that asks its question"),
        ('AXIS = "size"', 'AXIS = "precision"', ": SPLIT_AXIS is 'precision', allowed are size"),
        ("SPLIT", 'READS = ("heat",)\nSPLIT', ": READS has 'heat', known stages are warmth"),
    ],
)
def test_what_a_stage_does_not_declare_is_named(stages, old, new, complaint):
    (stages / "warmth/cell.py").write_text(CELL.replace(old, new))
    with pytest.raises(UserError) as raised:
        sweep.check_stage("warmth")
    assert str(raised.value).startswith(f"{stages}/warmth/cell.py{' ' if complaint[0] != ':' else ''}{complaint}")


def test_a_folder_that_is_not_registered_is_named_with_what_to_do(stages):
    (stages / "heat").mkdir()
    (stages / "heat/__init__.py").write_text("")
    for call in (sweep.stage_names, lambda: sweep.declaration("warmth")):
        with pytest.raises(UserError) as raised:
            call()
        expected = f"{stages}/heat/ is no stage yet: add 'heat' to READING_ORDER in {stages}/__init__.py"
        assert str(raised.value) == expected


def test_a_stage_that_is_registered_and_not_there_is_named(stages):
    (stages / "warmth/__init__.py").unlink()
    with pytest.raises(UserError, match=r"has 'warmth', but there is no warmth/__init__\.py"):
        sweep.stage_names()
