import subprocess
import sys

import pytest

from pipeline.cells import sweep


@pytest.mark.parametrize("stage", ["attention", "flash"])
@pytest.mark.parametrize("module", ["cell", "needs", "report.section"])
def test_what_the_workflow_and_the_report_read_of_a_stage_brings_no_torch(stage, module):
    code = f"import sys, pipeline.stages.{stage}.{module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("stage", ["attention", "flash"])
def test_a_stage_s_default_cell_names_its_rows_once(stage):
    keys = [tuple(key.items()) for key in sweep.declaration(stage).Cell().row_keys()]
    assert len(keys) == len(set(keys)) > 0


@pytest.mark.parametrize(
    ("stage", "axes", "on_cpu", "on_gpu"),
    [
        ("accounting", {}, True, True),
        ("precision", {}, True, True),
        ("flash", {}, False, True),
        ("attention", {}, False, True),
        ("memory", {"mode": "inference"}, False, True),
        ("memory", {"mode": "train_step"}, False, False),
        *((stage, {}, False, False) for stage in ("timing", "profile", "allreduce", "ddp", "sharding")),
    ],
)
def test_cells_share_the_host_where_company_changes_no_figure(stage, axes, on_cpu, on_gpu):
    cell = sweep.declaration(stage).Cell(**axes)
    assert (sweep.shares_host(cell, on_gpu=False), sweep.shares_host(cell, on_gpu=True)) == (on_cpu, on_gpu)
