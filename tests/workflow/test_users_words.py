"""The commands that a user gives first, in this checkout itself: with its configuration and its scales."""

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
    planned = plan(Project(ROOT), *tables, folder=tmp_path, scale=scale, only=["flash", "ddp", "attention"])
    assert sum(count for rule, count in planned.items() if rule.startswith("tabulate_")) == len(tables)
