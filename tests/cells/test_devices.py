import os
import random
import signal
import sys
from types import SimpleNamespace

import pytest

from pipeline.cells import devices, locks
from pipeline.cells.devices import TooFewGPUs, claim_gpus

FOUR = ["GPU-a", "GPU-b", "GPU-c", "GPU-d"]

HOLDER = """
import os, sys, time
from pipeline.cells.devices import claim_gpus
claim_gpus(int(sys.argv[1]), "measure flash", sys.argv[2].split(","))
print(os.environ["CUDA_VISIBLE_DEVICES"], flush=True)
{then}
"""


@pytest.fixture(autouse=True)
def folder(monkeypatch, own_locks):
    """Let each test begin as a process does that holds nothing, outside a scheduler, with CUDA not started."""
    monkeypatch.setattr(devices, "visible_devices_variable", lambda: "CUDA_VISIBLE_DEVICES")
    monkeypatch.setitem(sys.modules, "torch", None)
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "before")
    return own_locks


def claim(count, pool=FOUR):
    return claim_gpus(count, "measure flash", pool)


@pytest.fixture
def start(start_python):
    """Start processes that claim GPUs, print them, and go on as told."""

    def start_one(count, pool=FOUR, then="time.sleep(60)"):
        return start_python(HOLDER.format(then=then), count, ",".join(pool))

    return start_one


def claimed_by(process):
    return process.stdout.readline().strip().split(",")


def test_a_gpu_in_use_is_passed_over_and_cuda_sees_the_claimed_ones_alone(start):
    claimed_by(start(1))
    assert claim(2).device_ids == claim(2).device_ids == ("GPU-b", "GPU-c")  # not locked out by itself
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-b,GPU-c"


def test_a_killed_holders_lock_is_freed_though_a_program_that_it_started_lives_on(start):
    child = "import subprocess; print(subprocess.Popen(['sleep', '60'], close_fds=False).pid, flush=True)"
    holder = start(4, then=f"{child}\ntime.sleep(60)")
    claimed_by(holder)
    child_pid = int(holder.stdout.readline())
    holder.kill()
    try:
        assert claimed_by(start(4)) == FOUR
        os.kill(child_pid, 0)
    finally:
        os.kill(child_pid, signal.SIGKILL)


def test_whoever_waits_for_many_keeps_none_meanwhile(start):
    claimed_by(start(1))
    assert devices._try_locks(FOUR, 4, []) is None
    assert claimed_by(start(3)) == ["GPU-b", "GPU-c", "GPU-d"]


def test_a_long_wait_is_announced_once_with_who_has_what_it_waits_for(start, monkeypatch, capsys):
    monkeypatch.setattr(locks, "QUIET_S", 0.1)
    holder = start(3)
    claimed_by(holder)
    polls = iter([0.1] * 5)

    def draw(_low, _high):
        """Let the holder die after a few polls, which ends the wait."""
        return next(polls, None) or holder.kill() or 0.1

    monkeypatch.setattr(random, "uniform", draw)
    assert claim(2).waited_s > 0.1
    told = f"waiting for 2 of 4 GPUs to be free: in use by process {holder.pid} (measure flash)"
    assert capsys.readouterr().err.splitlines() == [told]


def test_more_gpus_than_present_is_refused_with_the_reason():
    with pytest.raises(TooFewGPUs, match=r"^needs 4 GPUs, 1 present$"):
        claim(4, ["GPU-a"])
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "before"


@pytest.mark.parametrize(("count", "pool"), [(0, FOUR), (4, [])])
def test_a_claim_of_none_hides_every_gpu_and_locks_nothing(folder, count, pool):
    assert claim(count, pool).device_ids == ()
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""
    assert not folder.exists()


def test_the_visible_devices_are_the_pool(monkeypatch):
    monkeypatch.setattr(devices, "visible_gpus", lambda: [SimpleNamespace(id="GPU-c"), SimpleNamespace(id="GPU-b")])
    assert claim(1, None).device_ids == ("GPU-c",)


@pytest.mark.parametrize("granted", ["SLURM_JOB_GPUS", "SLURM_STEP_GPUS", "SLURM_GPUS_ON_NODE"])
def test_a_scheduler_allocation_is_taken_as_it_is(granted, start, monkeypatch):
    claimed_by(start(4))
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv(granted, "4")
    assert claim(4).device_ids == tuple(FOUR)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "before"


def test_cells_that_share_a_larger_allocation_get_different_gpus(start, monkeypatch):
    claimed_by(start(2))
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_GPUS", "0,1,2,3")
    assert claim(2).device_ids == ("GPU-c", "GPU-d")


def test_a_scheduler_job_that_was_granted_no_gpus_locks_those_that_it_takes(monkeypatch, folder):
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    claim(4)
    assert sorted(path.stem for path in folder.iterdir()) == FOUR


def test_a_claim_that_comes_after_cuda_has_started_is_refused(monkeypatch):
    started = SimpleNamespace(cuda=SimpleNamespace(is_initialized=lambda: True))
    monkeypatch.setitem(sys.modules, "torch", started)
    with pytest.raises(RuntimeError, match="before it starts"):
        claim(1)


def test_a_slice_of_a_gpu_is_locked_inside_the_folder_whatever_its_name(folder):
    assert claim(1, ["MIG-GPU-a/1/0"]).device_ids == ("MIG-GPU-a/1/0",)
    assert [path.name for path in folder.iterdir()] == ["MIG-GPU-a-1-0.lock"]
