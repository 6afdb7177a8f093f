"""The commands that a user gives first, in this checkout itself: with its configuration and its scales."""

import csv
import re
import subprocess
import sys

import pytest

from pipeline.cells.config import load_plan
from pipeline.registry import stages

from .conftest import ROOT, Project

pytestmark = pytest.mark.workflow

SCALES = sorted(path.stem for path in (ROOT / "config/scales").glob("*.yaml"))
CONFIG = {"measure": True, "overrides": {}}
TABLE = "results/flash/bf16.csv"


@pytest.fixture
def checkout(monkeypatch, tmp_path):
    """Return what runs Snakemake in this checkout without a GPU, its outputs in another folder."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    def snakemake(*words):
        code, output = Project(ROOT).snakemake(*words, "--directory", str(tmp_path))
        assert code == 0, output
        return output

    return snakemake


@pytest.mark.parametrize("words", [("--cores", "1", "--resources", "gpu=8", "reports/writeup.md"), (TABLE,)])
def test_the_first_commands_are_planned_without_a_gpu(checkout, words):
    assert "To do: " in checkout("--dry-run", *words)


def test_the_tests_are_found():
    command = [sys.executable, "-m", "pytest", "tests/", "--collect-only", "-q", "-n", "0"]
    assert subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL).returncode == 0


@pytest.mark.parametrize("scale", SCALES)
def test_every_scale_measures_bf16_attention(scale):
    known = stages()
    plan = load_plan({**CONFIG, "scale": scale}, ROOT / "config/scales", ROOT / "workflow/schemas", known, False)
    assert "bf16" in {cell.dtype for cell in plan.stages["flash"].cells}


@pytest.mark.parametrize("scale", SCALES)
def test_any_value_of_a_split_axis_has_a_table_at_every_scale(checkout, scale):
    tables = [TABLE, "results/flash/fp16.csv", "results/ddp/bf16.csv", "results/attention/24.csv"]
    output = checkout("--dry-run", *tables, "--config", f"scale={scale}")
    assert re.search(r"To do: \d+ cells, 4 tables", output), output


@pytest.mark.usefixtures("without_worker")
@pytest.mark.parametrize("table", [TABLE, "results/flash/fp16.csv"])
def test_a_table_is_made_whether_the_scale_has_its_value_or_not(checkout, tmp_path, table):
    checkout(table, "--config", "scale=smoke")
    with (tmp_path / table).open() as file:
        rows = list(csv.DictReader(file))
    assert {row["dtype"] for row in rows} == {table[-8:-4]}
    assert {row["status"] for row in rows} >= {"skipped"}
    assert any(row["median_ms"] for row in rows)
