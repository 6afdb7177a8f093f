import os
import random
import signal
import sys
from types import SimpleNamespace

import pytest

from pipeline.cells import devices, locks
from pipeline.cells.devices import TooFewGPUs, claim_gpus

FOUR = ("GPU-a", "GPU-b", "GPU-c", "GPU-d")

HOLDER = """
import os, sys, time, types
from pipeline.cells import devices
devices.visible_gpus = lambda: [types.SimpleNamespace(id=each) for each in sys.argv[2].split(",")]
devices.claim_gpus(int(sys.argv[1]), "measure flash")
print(os.environ["CUDA_VISIBLE_DEVICES"], flush=True)
{then}
"""


@pytest.fixture(autouse=True)
def folder(monkeypatch, own_locks):
    """Start each test without locks, outside a scheduler and before CUDA has started."""
    monkeypatch.setattr(devices, "visible_devices_variable", lambda: "CUDA_VISIBLE_DEVICES")
    monkeypatch.setitem(sys.modules, "torch", None)
    for name in ("SLURM_JOB_ID", *devices.ALLOCATION_VARIABLES):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "before")
    return own_locks


def claim(count, pool=FOUR):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(devices, "visible_gpus", lambda: [SimpleNamespace(id=each) for each in pool])
        return claim_gpus(count, "measure flash")


@pytest.fixture
def start(start_python):
    """Return a function that starts a process that claims GPUs, then runs `then`; it returns process and GPUs."""

    def start_one(count, then="time.sleep(60)"):
        process = start_python(HOLDER.format(then=then), count, ",".join(FOUR))
        return process, tuple(process.stdout.readline().strip().split(","))

    return start_one


def test_a_gpu_in_use_is_skipped_and_cuda_sees_only_claimed_gpus(start):
    start(1)
    assert claim(2).device_ids == claim(2).device_ids == ("GPU-b", "GPU-c")  # not locked out by itself
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-b,GPU-c"
    assert claim(1, ["MIG-GPU-c/1/0"]).device_ids == ("MIG-GPU-c/1/0",)  # a MIG slice


def test_killing_a_holder_frees_its_locks_even_if_its_child_lives_on(start):
    child = "import subprocess; print(subprocess.Popen(['sleep', '60'], close_fds=False).pid, flush=True)"
    holder, _ = start(4, then=f"{child}\ntime.sleep(60)")
    child_pid = int(holder.stdout.readline())
    holder.kill()
    try:
        assert start(4)[1] == FOUR
        os.kill(child_pid, 0)
    finally:
        os.kill(child_pid, signal.SIGKILL)


def test_a_process_waiting_for_many_gpus_holds_none_meanwhile(start):
    start(1)
    assert devices._try_locks(FOUR, 4, []) is None
    assert start(3)[1] == ("GPU-b", "GPU-c", "GPU-d")


def test_a_long_wait_is_announced_once_and_names_the_holder(start, monkeypatch, capsys):
    monkeypatch.setattr(locks, "ANNOUNCE_AFTER_S", 0.1)
    holder, _ = start(3)
    polls = iter([0.1] * 5)  # and then the holder dies
    monkeypatch.setattr(random, "uniform", lambda *_: next(polls, None) or holder.kill() or 0.1)
    assert claim(2).waited_s > 0.1
    message = f"waiting for 2 of 4 GPUs to be free: in use by process {holder.pid} (measure flash)"
    assert capsys.readouterr().err.splitlines() == [message]


def test_claiming_too_many_gpus_or_after_cuda_has_started_is_refused(monkeypatch):
    with pytest.raises(TooFewGPUs, match=r"^needs 4 GPUs, 1 present$"):
        claim(4, ["GPU-a"])
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=SimpleNamespace(is_initialized=lambda: True)))
    with pytest.raises(RuntimeError, match="before it starts"):
        claim(1)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "before"


@pytest.mark.parametrize(("count", "pool"), [(0, FOUR), (4, [])])
def test_an_empty_claim_hides_every_gpu_and_locks_nothing(folder, count, pool):
    assert claim(count, pool).device_ids == ()
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""
    assert not folder.exists()


@pytest.mark.parametrize("granted", ["SLURM_JOB_GPUS", "SLURM_STEP_GPUS", "SLURM_GPUS_ON_NODE"])
def test_a_full_slurm_allocation_needs_no_locks_but_a_shared_one_does(granted, start, monkeypatch):
    start(2)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert claim(2).device_ids == ("GPU-c", "GPU-d")  # no GPUs were granted to the job
    monkeypatch.setenv(granted, "4")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "before")
    assert claim(4).device_ids == FOUR
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "before"
    assert claim(2).device_ids == ("GPU-c", "GPU-d")
