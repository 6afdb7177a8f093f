import json

import pytest

from pipeline.cells.config import load_plan
from pipeline.registry import stages

from .conftest import ROOT, Project

pytestmark = pytest.mark.workflow

SCALES = ["auto", *sorted(path.stem for path in (ROOT / "config/scales").glob("*.yaml"))]
TABLES = ("results/flash/bf16.csv", "results/flash/fp16.csv", "results/ddp/bf16.csv", "results/attention/24.csv")


@pytest.mark.parametrize("scale", SCALES)
def test_every_scale_has_bf16_attention_on_a_cpu_and_a_table_per_split_axis_value(plan, tmp_path, monkeypatch, scale):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    folders = ROOT / "config/scales", ROOT / "workflow/schemas"
    plans = load_plan({"scale": scale, "measure": True, "overrides": {}}, *folders, stages(), False).stages
    assert "bf16" in {cell.dtype for cell in plans["flash"].cells}
    tables = [table for table in TABLES if plans[table.split("/")[1]].cells]
    # In this checkout itself, with its own configuration and scales.
    planned = plan(Project(ROOT), *tables, folder=tmp_path, scale=scale, only=["flash", "ddp", "attention"])
    assert sum(count for rule, count in planned.items() if rule.startswith("tabulate_")) == len(tables)


@pytest.mark.slow
def test_the_writeup_of_a_whole_run_without_a_gpu_is_short_enough_to_read(project, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    project.snakemake("--cores", "all", "reports/writeup.md", "--config", "scale=laptop", timeout_s=3600)
    assert json.loads((project.root / "reports/summary.json").read_text())["scale"] == "laptop"
    assert len((project.root / "reports/writeup.md").read_text().splitlines()) <= 250
