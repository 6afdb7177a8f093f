import subprocess
import sys

import pytest

from pipeline.cells import own_cores
from pipeline.cells.stage import shares_host
from pipeline.registry import NAMES, stage

SHARE_A_HOST_WITH_GPUS = ("attention", "flash", "memory", "ops", "timing", "profile", "levers", "ddp")


def test_planning_does_not_import_torch():
    needs = [f"{stage(name).package}.needs" for name in NAMES if (stage(name).folder / "needs.py").is_file()]
    code = f"import sys, {', '.join(needs)}; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", NAMES)
def test_row_keys_of_a_default_cell_are_unique(name):
    keys = [tuple(key.items()) for key in stage(name).cell_type().row_keys()]
    assert len({*keys}) == len(keys) > 0


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
        *((name, {}, False, True) for name in SHARE_A_HOST_WITH_GPUS),
    ],
)
def test_cells_share_the_host_if_neighbours_change_no_values(monkeypatch, name, axes, on_cpu, on_gpus, has_cores):
    cell = stage(name).cell_type(**axes)
    monkeypatch.setattr(own_cores, "each_gpu_has_own_cores", lambda: has_cores)
    assert shares_host(cell, gpus_present=0) == on_cpu
    assert shares_host(cell, gpus_present=8) == (on_gpus and (has_cores or cell.gpus == 0))
