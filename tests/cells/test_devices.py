import os
import random
import signal
import stat
import subprocess
import sys
import textwrap
import time
from types import SimpleNamespace

import pytest

from pipeline.cells import devices
from pipeline.cells.devices import TooFewGPUs, claim_gpus

FOUR = ["GPU-a", "GPU-b", "GPU-c", "GPU-d"]

HOLDER = """
import os, sys, time
from pathlib import Path
from pipeline.cells.devices import claim_gpus
claim_gpus(int(sys.argv[1]), sys.argv[2].split(","), Path(sys.argv[3]))
print(os.environ["CUDA_VISIBLE_DEVICES"], flush=True)
{then}
"""


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch):
    """Let each test begin as a process does that holds nothing, outside a scheduler, with CUDA not started."""
    monkeypatch.setattr(devices, "_held", {})
    monkeypatch.setattr(devices, "visible_devices_variable", lambda: "CUDA_VISIBLE_DEVICES")
    monkeypatch.setitem(sys.modules, "torch", None)
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "before")


@pytest.fixture
def start(tmp_path):
    """Start processes that claim GPUs, print them, and go on as told; kill what is left of them at the end."""
    started = []

    def start_one(count, pool=FOUR, then="time.sleep(60)"):
        code = HOLDER.format(then=textwrap.dedent(then))
        command = [sys.executable, "-c", code, str(count), ",".join(pool), str(tmp_path)]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen(command, env=environment, **pipes))
        return started[-1]

    yield start_one
    for process in started:
        process.kill()
        process.communicate()


def claimed_by(process):
    return process.stdout.readline().strip().split(",")


def test_two_processes_never_hold_the_same_gpu(start):
    first, second = start(2), start(2)
    assert sorted(claimed_by(first) + claimed_by(second)) == FOUR


def test_cuda_sees_the_claimed_gpus_and_no_others(tmp_path):
    claim = claim_gpus(2, FOUR, tmp_path)
    assert claim.device_ids == ("GPU-a", "GPU-b")
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-a,GPU-b"


def test_a_gpu_in_use_is_passed_over(start, tmp_path):
    claimed_by(start(1))
    assert claim_gpus(2, FOUR, tmp_path).device_ids == ("GPU-b", "GPU-c")


def test_lock_is_freed_when_its_holder_is_killed(start, tmp_path):
    holder = start(4)
    claimed_by(holder)
    waiting = start(4)
    with pytest.raises(subprocess.TimeoutExpired):
        waiting.wait(timeout=0.7)
    holder.send_signal(signal.SIGKILL)
    assert claimed_by(waiting) == FOUR


def test_a_program_started_by_the_holder_does_not_keep_the_lock(start, tmp_path):
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


def test_whoever_waits_for_many_keeps_none_meanwhile(start, tmp_path):
    claimed_by(start(1))
    start(4)
    time.sleep(0.7)
    assert claim_gpus(3, FOUR, tmp_path).device_ids == ("GPU-b", "GPU-c", "GPU-d")


def test_cells_that_need_two_and_four_all_get_their_turn(start):
    claimants = [start(count, then="time.sleep(0.1)") for count in (4, 2, 4, 2, 3, 4)]
    for process in claimants:
        assert process.wait(timeout=15) == 0


def test_a_long_wait_is_announced_once_with_what_it_waits_for(tmp_path, start, monkeypatch, capsys):
    monkeypatch.setattr(devices, "_QUIET_S", 0.1)
    holder = start(3)
    claimed_by(holder)
    polls = iter(range(6))
    # The holder dies after a few polls, which ends the wait.
    monkeypatch.setattr(
        random, "uniform", lambda low, _high: low if next(polls, None) is not None else holder.kill() or low
    )
    claim_gpus(2, FOUR, tmp_path)
    announced = capsys.readouterr().err.splitlines()
    assert len(announced) == 1
    assert "2 of 4 GPUs" in announced[0]


def test_more_gpus_than_present_is_refused_with_the_reason(tmp_path):
    with pytest.raises(TooFewGPUs, match=r"^needs 4 GPUs, 1 present$") as refused:
        claim_gpus(4, ["GPU-a"], tmp_path)
    assert (refused.value.needed, refused.value.present) == (4, 1)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "before"


def test_without_gpus_the_claim_is_empty(tmp_path):
    assert claim_gpus(4, [], tmp_path / "locks").device_ids == ()
    assert not (tmp_path / "locks").exists()


def test_a_claim_of_none_hides_every_gpu_and_locks_nothing(tmp_path):
    assert claim_gpus(0, FOUR, tmp_path / "locks").device_ids == ()
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""
    assert not (tmp_path / "locks").exists()


def test_the_visible_devices_are_the_pool(tmp_path, monkeypatch):
    monkeypatch.setattr(devices, "visible_gpus", lambda: [SimpleNamespace(id="GPU-c"), SimpleNamespace(id="GPU-b")])
    assert claim_gpus(1, lock_folder=tmp_path).device_ids == ("GPU-c",)


def test_a_process_is_not_locked_out_by_itself(tmp_path):
    assert claim_gpus(3, FOUR, tmp_path).device_ids == claim_gpus(3, FOUR, tmp_path).device_ids


@pytest.mark.parametrize("granted", ["SLURM_JOB_GPUS", "SLURM_STEP_GPUS", "SLURM_GPUS_ON_NODE"])
def test_a_scheduler_allocation_is_taken_as_it_is(granted, start, tmp_path, monkeypatch):
    claimed_by(start(4))
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv(granted, "4")
    assert claim_gpus(4, FOUR, tmp_path).device_ids == tuple(FOUR)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "before"


def test_cells_that_share_a_larger_allocation_get_different_gpus(start, tmp_path, monkeypatch):
    claimed_by(start(2))
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_GPUS", "0,1,2,3")
    assert claim_gpus(2, FOUR, tmp_path).device_ids == ("GPU-c", "GPU-d")


def test_a_scheduler_job_that_was_granted_no_gpus_locks_those_that_it_takes(tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    claim_gpus(4, FOUR, tmp_path)
    assert sorted(path.stem for path in tmp_path.iterdir()) == FOUR


def test_a_claim_that_comes_after_cuda_has_started_is_refused(tmp_path, monkeypatch):
    started = SimpleNamespace(cuda=SimpleNamespace(is_initialized=lambda: True))
    monkeypatch.setitem(sys.modules, "torch", started)
    with pytest.raises(RuntimeError, match="before it starts"):
        claim_gpus(1, FOUR, tmp_path)


def test_a_link_that_another_user_put_where_a_lock_belongs_is_not_followed(tmp_path):
    (tmp_path / "GPU-a.lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic link"):
        claim_gpus(1, FOUR, tmp_path)
    assert not (tmp_path / "elsewhere").exists()


def test_every_user_may_lock(tmp_path):
    umask = os.umask(0o077)
    try:
        claim_gpus(1, FOUR, tmp_path / "locks")
    finally:
        os.umask(umask)
    assert stat.S_IMODE((tmp_path / "locks").stat().st_mode) == 0o777
    assert stat.S_IMODE((tmp_path / "locks" / "GPU-a.lock").stat().st_mode) == 0o666
