from pathlib import Path

import pytest
import torch

from pipeline.cells import fields
from pipeline.cells.config import read_scale
from pipeline.errors import Skipped
from pipeline.instruments.sampling.stopwatch import Stopwatch
from pipeline.stages.precision.cell import DEVICES, EXPERIMENTS, Cell, Settings
from pipeline.stages.precision.measure import measure

each_experiment = pytest.mark.parametrize("experiment", EXPERIMENTS)


@pytest.mark.parametrize("scale", ["paper", "laptop", "smoke"])
def test_every_scale_runs_every_experiment_on_every_device(scale):
    root = Path(__file__).parents[3]
    stages = read_scale(root / f"config/scales/{scale}.yaml", root / "workflow/schemas/scale.schema.yaml")["stages"]
    cells = fields.expand(Cell, stages["precision"]["grids"], scale)
    assert sorted(map(str, cells)) == sorted(str(Cell(name, device)) for name in EXPERIMENTS for device in DEVICES)


def test_a_cell_on_cuda_takes_a_gpu_and_is_skipped_where_there_is_none(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert [Cell("autocast", device).gpus for device in ("cpu", "cuda")] == [0, 1]
    with pytest.raises(Skipped, match="no CUDA GPU"):
        measure(Cell("autocast", "cuda"), Settings(), Stopwatch())


@each_experiment
def test_every_row_is_ok_and_names_its_device_and_row_keys_lists_them_all(cpu_rows_by_cell, experiment):
    cell = Cell(experiment, "cpu")
    rows, keys = cpu_rows_by_cell[cell], cell.row_keys()
    assert all(row["status"] == "ok" and row["device_name"] for row in rows)
    row_keys = [{name: row[name] for name in keys[0]} for row in rows]
    assert all(key in row_keys for key in keys)
    assert all(key in keys for key in row_keys)


@pytest.mark.gpu
@each_experiment
def test_a_gpu_gives_the_same_rows_as_the_cpu(cpu_rows_by_cell, experiment):
    names = list(Cell(experiment).row_keys()[0])
    settings = Settings(d_model=256, input_rows=4)
    rows = measure(Cell(experiment, "cuda"), settings, Stopwatch())
    expected = cpu_rows_by_cell[Cell(experiment, "cpu")]
    assert [[row[name] for name in names] for row in rows] == [[row[name] for name in names] for row in expected]
    assert {row["device_name"] for row in rows} == {torch.cuda.get_device_name()}
