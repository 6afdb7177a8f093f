"""The commands that a user gives first, in this checkout itself: with its configuration and its scales."""

import csv

import pytest

from pipeline.cells.config import load_plan
from pipeline.registry import stages

from .conftest import ROOT, Project

pytestmark = pytest.mark.workflow

SCALES = sorted(path.stem for path in (ROOT / "config/scales").glob("*.yaml"))
CONFIG = {"measure": True, "overrides": {}}


@pytest.fixture
def without_gpu(monkeypatch):
    """Hide the GPUs."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.mark.usefixtures("without_gpu")
def test_the_first_command_is_planned_without_a_gpu(tmp_path):
    words = ("--cores", "1", "--resources", "gpu=8", "reports/writeup.md", "--dry-run", "--directory", str(tmp_path))
    code, output = Project(ROOT).snakemake(*words)
    assert code == 0, output
    assert "To do: " in output


@pytest.mark.usefixtures("without_gpu")
@pytest.mark.parametrize("scale", SCALES)
def test_every_scale_measures_bf16_attention_and_any_value_of_a_split_axis_has_a_table(plan, tmp_path, scale):
    known = stages()
    asked = load_plan({**CONFIG, "scale": scale}, ROOT / "config/scales", ROOT / "workflow/schemas", known, False)
    assert "bf16" in {cell.dtype for cell in asked.stages["flash"].cells}
    tables = ("results/flash/bf16.csv", "results/flash/fp16.csv", "results/ddp/bf16.csv", "results/attention/24.csv")
    tables = [table for table in tables if asked.stages[table.split("/")[1]].cells]
    planned = plan(Project(ROOT), *tables, folder=tmp_path, scale=scale)
    assert sum(count for rule, count in planned.items() if rule.startswith("tabulate_")) == len(tables)


@pytest.mark.usefixtures("without_gpu", "without_worker")
def test_a_table_is_made_of_a_value_that_the_scale_lacks(tmp_path):
    grid = "settings: {max_samples: 3, min_samples: 3, budget_s: 0.1}, grids: [{head_dim: [16], seq_len: [32]}]"
    words = ("results/flash/fp16.csv", "--config", "scale=smoke", f"overrides={{flash: {{{grid}}}}}")
    code, output = Project(ROOT).snakemake(*words, "--directory", str(tmp_path))
    assert code == 0, output
    with (tmp_path / "results/flash/fp16.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["dtype"] for row in rows} == {"fp16"}
    assert {row["status"] for row in rows} >= {"skipped"}
    assert any(row["median_ms"] for row in rows)
