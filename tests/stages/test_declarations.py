import subprocess
import sys

import pytest

from pipeline.cells import own_cores
from pipeline.cells.stage import shares_host
from pipeline.registry import NAMES, stage

WITHOUT_TORCH = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
    assert "torch" not in sys.modules, name
"""
READ_BY_THE_WORKFLOW = [
    f"{stage(name).package}.{part}"
    for name in NAMES
    for part in ("cell", "rows", "needs")
    if (stage(name).folder / f"{part}.py").is_file()
]
OF_FORMULAS = [f"{stage(name).package}.report" for name in ("attention", "flash", "ops", "accounting")]


@pytest.mark.parametrize("modules", [READ_BY_THE_WORKFLOW, OF_FORMULAS])
def test_what_is_read_without_measuring_brings_no_torch(modules):
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH, *modules], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", NAMES)
def test_a_stage_s_declarations_are_whole_and_its_default_cell_names_its_rows_once(name):
    keys = stage(name).cell_type().row_keys()
    assert len({tuple(key.items()) for key in keys}) == len(keys) > 0
    assert {column for key in keys for column in key} <= set(stage(name).row_types.key_columns())
    stage(name).check(NAMES)


@pytest.mark.parametrize("has_cores", [True, False])
@pytest.mark.parametrize(
    ("name", "axes", "on_cpu", "on_gpus"),
    [
        ("accounting", {}, True, True),
        ("precision", {}, True, True),
        ("ceilings", {"what": "launches"}, False, True),
        ("ceilings", {"what": "host_link"}, False, True),
        ("collectives", {"backend": "gloo"}, False, False),
        ("collectives", {"backend": "nccl"}, False, True),
        *(
            (name, {}, False, True)
            for name in ("attention", "flash", "memory", "ops", "timing", "profile", "levers", "ddp")
        ),
    ],
)
def test_cells_share_the_host_where_company_changes_no_value(monkeypatch, name, axes, on_cpu, on_gpus, has_cores):
    cell = stage(name).cell_type(**axes)
    monkeypatch.setattr(own_cores, "each_gpu_has_its_own", lambda: has_cores)
    assert shares_host(cell, gpus_present=0) == on_cpu
    assert shares_host(cell, gpus_present=8) == (on_gpus and (has_cores or cell.gpus == 0))
