from pathlib import Path

import pytest
import torch

from pipeline.cells import fields
from pipeline.cells.config import read_scale
from pipeline.errors import Skipped
from pipeline.instruments.sampling.stopwatch import Stopwatch
from pipeline.stages.precision.cell import DEVICES, EXPERIMENTS, Cell, Settings
from pipeline.stages.precision.measure import measure


def test_a_cell_on_the_cpu_takes_no_gpu_and_one_on_cuda_takes_one():
    assert [Cell("autocast", device).gpus for device in ("cpu", "cuda")] == [0, 1]


@pytest.mark.parametrize("scale", ["paper", "laptop", "smoke"])
def test_every_scale_runs_every_experiment_on_every_device(scale):
    root = Path(__file__).parents[3]
    stages = read_scale(root / f"config/scales/{scale}.yaml", root / "workflow/schemas/scale.schema.yaml")["stages"]
    cells = fields.expand(Cell, stages["precision"]["grids"], scale)
    assert sorted(map(str, cells)) == sorted(str(Cell(name, device)) for name in EXPERIMENTS for device in DEVICES)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_a_cell_on_cuda_is_skipped_where_there_is_none(experiment):
    with pytest.raises(Skipped, match="no CUDA GPU"):
        measure(Cell(experiment, "cuda"), Settings(), Stopwatch())


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_row_is_ok_and_names_its_device(cpu_rows_by_cell, experiment):
    rows = cpu_rows_by_cell[Cell(experiment, "cpu")]
    assert {row["status"] for row in rows} == {"ok"}
    assert all(row["device_name"] for row in rows)


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_the_keys_of_an_unmeasured_cell_are_those_of_its_rows(cpu_rows_by_cell, experiment):
    cell = Cell(experiment, "cpu")
    keys = cell.row_keys()
    row_keys = [{name: row[name] for name in keys[0]} for row in cpu_rows_by_cell[cell]]
    assert all(key in row_keys for key in keys)
    assert all(key in keys for key in row_keys)


@pytest.mark.gpu
@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_a_gpu_gives_the_rows_that_the_cpu_gives(cpu_rows_by_cell, experiment):
    names = list(Cell(experiment).row_keys()[0])
    settings = Settings(d_model=256, input_rows=4)
    rows = measure(Cell(experiment, "cuda"), settings, Stopwatch())
    expected = cpu_rows_by_cell[Cell(experiment, "cpu")]
    assert [[row[name] for name in names] for row in rows] == [[row[name] for name in names] for row in expected]
    assert {row["device_name"] for row in rows} == {torch.cuda.get_device_name()}
