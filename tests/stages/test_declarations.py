import subprocess
import sys

import pytest

from pipeline.cells.stage import shares_host
from pipeline.registry import NAMES, stage


@pytest.mark.parametrize("name", NAMES)
def test_what_the_workflow_reads_of_a_stage_brings_no_torch(name):
    modules = [f"{stage(name).package}.{part}" for part in ("cell", "rows", "needs")]
    modules = [module for module in modules if (stage(name).folder / f"{module.rpartition('.')[2]}.py").is_file()]
    code = f"import sys, {', '.join(modules)}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("name", ["attention", "flash", "ops", "accounting"])
def test_a_section_of_formulas_and_tables_brings_no_torch(name):
    code = f"import sys, {stage(name).package}.report; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("name", NAMES)
def test_a_stage_s_default_cell_names_its_rows_once_by_columns_that_tell_them_apart(name):
    keys = stage(name).cell_type().row_keys()
    assert len({tuple(key.items()) for key in keys}) == len(keys) > 0
    assert {column for key in keys for column in key} <= set(stage(name).row_types.key_columns())


@pytest.mark.parametrize("name", NAMES)
def test_a_stage_s_declarations_are_whole(name):
    stage(name).check(NAMES)


@pytest.mark.parametrize(
    ("name", "axes", "on_cpu", "on_gpu"),
    [
        ("accounting", {}, True, True),
        ("precision", {}, True, True),
        ("flash", {}, False, True),
        ("ops", {}, False, True),
        ("attention", {"seq_len": 4096}, False, True),
        ("attention", {"seq_len": 1024}, False, False),
        *(("ceilings", {"what": what}, False, True) for what in ("matmul", "memory")),
        *(("ceilings", {"what": what}, False, False) for what in ("host_link", "peer_link", "launches")),
        ("memory", {"mode": "inference"}, False, True),
        ("memory", {"mode": "train_step"}, False, False),
        *((name, {}, False, False) for name in ("timing", "profile", "collectives", "ddp", "sharding", "fsdp")),
    ],
)
def test_cells_share_the_host_where_company_changes_no_figure(name, axes, on_cpu, on_gpu):
    cell = stage(name).cell_type(**axes)
    assert (shares_host(cell, on_gpu=False), shares_host(cell, on_gpu=True)) == (on_cpu, on_gpu)
