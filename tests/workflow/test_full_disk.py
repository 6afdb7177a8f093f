"""A disk that fills while a run measures, shown on a small one."""

import json
import shutil
import time

import pytest

from ..processes import wait_until

pytestmark = [pytest.mark.workflow, pytest.mark.slow]

TOLD = "snakemake: the disk is full, nothing more is measured: make room and run the same command again"
# The first of them is there.
FIVE_CELLS = {"timing": {"grids": [{"size": ["tiny"], "context_length": [16, 17, 18, 19, 20]}]}}


@pytest.mark.usefixtures("without_worker")
def test_a_run_on_a_disk_that_fills_keeps_what_it_measures_and_stops(measured, small_disk, plan):
    disk = small_disk(size_mib=160)
    project = type(measured)(shutil.copytree(measured.root, disk.folder / "project"))
    free = shutil.disk_usage(disk.folder).free
    run = project.start("--config", f"overrides={json.dumps(FIVE_CELLS)}")
    wait_until(lambda: shutil.disk_usage(disk.folder).free < free - 3 * 2**20)
    time.sleep(1)  # the room is tried, then taken; torch's import is yet to come
    disk.fill()
    output, _ = run.communicate(timeout=120)
    assert run.returncode == 1
    assert len(project.records()) == len(measured.records()) + 1, output
    assert output.splitlines().count(TOLD) == 1
    assert output.count("Error in rule measure_timing") == 1
    assert "Traceback" not in output

    (disk.folder / "filler").unlink()
    assert plan(project, "results/timing/cells.csv", overrides=FIVE_CELLS)["measure_timing"] == 3
