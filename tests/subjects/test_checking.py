import psutil
import pytest
import torch

from pipeline.cells import locks
from pipeline.errors import Skipped
from pipeline.parallel.processes.starting import RankFailed
from pipeline.subjects.attention_check import check_attention
from pipeline.subjects.checking import Processes, Verdict, survivors, verdict
from pipeline.subjects.naming import Subject
from pipeline.subjects.training_check import check_ddp
from pipeline.subjects.turns import note_last

from .outside_files import ADAPTERS, attention, training

FIRST, SECOND, THIRD = (Subject("attention", name, f"mine:{name}") for name in ("first", "second", "third"))


def check(subject, timeout_s=60):
    return verdict(check_attention, subject, Processes(1, "gloo", "cpu", timeout_s), torch.float32, 16, True)


@pytest.mark.usefixtures("quick_ranks")
def test_a_crash_is_wrong_and_a_timeout_is_skipped_naming_the_setting_to_raise():
    assert check(attention("crashes")) == Verdict("wrong", "its process died by SIGSEGV")
    hanging = check(attention("hangs"), timeout_s=1)
    assert hanging.status == "skipped"
    assert hanging.reason.startswith("its process sent no result within 1 s (attention.py:")
    assert "check_timeout_s" in hanging.reason


@pytest.mark.usefixtures("quick_ranks")
@pytest.mark.parametrize(
    ("function", "file", "status", "said"),
    [
        ("attention", "package", "skipped", "einops_that_nobody_has: pip install einops_that_nobody_has"),
        ("attention", "version", "skipped", "cs336_systems_of_nobody is not installed: pip install --no-deps -e "),
        ("driver", "machine", "skipped", "needs a CUDA GPU"),
        ("too_small", "machine", "skipped", "needs a larger machine"),
        ("memory", "machine", "oom", "can't allocate memory"),
        ("memory_for_threads", "machine", "oom", "Cannot allocate memory"),
        ("killed", "machine", "oom", "died by SIGKILL"),
    ],
)
def test_an_implementation_is_not_wrong_if_the_environment_lacks_something(function, file, status, said):
    found = check(attention(function, f"lacking/{file}.py"))
    assert found.status == status
    assert said in found.reason


@pytest.mark.usefixtures("quick_ranks")
def test_ranks_without_a_network_interface_are_skipped():
    wrapper = training("ddp", "interface", file="lacking/machine.py")
    found = verdict(check_ddp, wrapper, Processes(2, "gloo", "cpu", 60))
    assert (found.status, "GLOO_SOCKET_IFNAME" in found.reason) == ("skipped", True)


def test_an_implementation_that_is_not_written_yet_is_skipped():
    getter = Subject("attention", "mine", f"{ADAPTERS}:get_flashattention_autograd_function_triton")
    assert check(getter) == Verdict("skipped", "not implemented")


ENDS = {
    "wrong, its process died by SIGSEGV": RankFailed(0, "rank 0 of 1 died by SIGSEGV"),
    "wrong, rank 1 of 2 died by SIGABRT: gloo aborts where ranks begin": RankFailed(0, "rank 1 of 2 died by SIGABRT"),
    "skipped, too small a machine": Skipped("too small a machine"),
    "oom, too much": MemoryError("too much"),
    "oom, much": torch.OutOfMemoryError("much"),
}


@pytest.mark.parametrize("said", ENDS)
def test_a_failed_measurement_is_repeated_without_the_implementation_that_ran_last(said):
    measured = []

    def measure(left, mark):
        measured.append(list(left))
        if SECOND in left:
            note_last(mark, left.index(SECOND))
            raise ENDS[said]
        return [{"impl": "first"}]

    result, out = survivors(measure, [FIRST, SECOND, THIRD])
    assert (result, measured) == ([{"impl": "first"}], [[FIRST, SECOND, THIRD], [FIRST, THIRD]])
    assert list(out) == [SECOND]
    assert f"{out[SECOND].status}, {out[SECOND].reason}".startswith(said)


def test_without_a_culprit_all_are_left_out_and_a_second_failure_is_ours():
    def measure(left, mark):
        raise RankFailed(0, f"rank 0 of 1 raised ValueError: with {len(left)}")

    with pytest.raises(RankFailed, match="with 0"):
        survivors(measure, [FIRST, SECOND])


LEAVING_A_DAEMON = """
import os, pathlib, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        pathlib.Path("daemon.new").write_text(str(os.getpid()))
        os.rename("daemon.new", "daemon")
        time.sleep(60)
    os._exit(0)
while not os.path.exists("daemon"): time.sleep(0.01)
def attention(q, k, v, is_causal): raise NotImplementedError
"""


def test_a_daemon_started_by_an_implementation_dies_with_its_check_and_holds_no_lock(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(locks, "_held", {})
    monkeypatch.setenv(locks.FOLDER_VARIABLE, str(tmp_path / "locks"))
    (tmp_path / "mine.py").write_text(LEAVING_A_DAEMON)
    assert locks.try_lock("host")
    assert check(Subject("attention", "mine", "mine.py:attention")).status == "skipped"
    locks.release("host")
    assert locks.try_lock("host")
    assert not psutil.pid_exists(int((tmp_path / "daemon").read_text()))
