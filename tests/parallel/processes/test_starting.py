"""Ranks as real processes: tests run with both ways to start them, forked and in a fresh interpreter."""

import errno
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from types import ModuleType

import psutil
import pytest
import torch
import torch.distributed as dist

from pipeline import loaded_modules
from pipeline.errors import Skipped
from pipeline.parallel.processes import rank, starting
from pipeline.parallel.processes.starting import RankFailed, run_ranks

ROOT = Path(__file__).parents[3]
ORPHANS = """
import os, sys, time
from pipeline.parallel.processes import starting

def sleep(context):
    os.write(1, f"{os.getpid()}\\n".encode())
    time.sleep(60)

if __name__ == "__main__":
    if sys.argv[1] == "fresh":
        starting._can_fork = lambda _device_type: False
    starting.run_ranks(sleep, 1, backend="gloo")
"""
PROCESSES_BEFORE = set()
JOIN = dist.init_process_group
PATIENCE_S = 60  # for what should happen at once


@pytest.fixture(params=["forked", "fresh"])
def start(request, monkeypatch):
    """Start ranks in one of the two ways; forked ones use one thread, because this process may have used its pool."""
    monkeypatch.setattr(starting, "_can_fork", lambda _device_type: request.param == "forked")
    if request.param == "forked":
        monkeypatch.setattr(starting, "threads_per_rank", lambda _world_size: 1)
    return request.param


# For tests in which the way to start makes no difference.
forked = pytest.mark.parametrize("start", ["forked"], indirect=True)


@pytest.fixture(autouse=True)
def processes_before():
    """Note what other tests have left running, such as torch.compile's workers."""
    PROCESSES_BEFORE.clear()
    PROCESSES_BEFORE.update(psutil.Process().children(recursive=True))


def ranks_alive():
    """List the live processes that the test started, except multiprocessing's two helpers, which stay."""
    from ...processes import has_ended  # here, because fresh ranks import this module without its package

    children = set(psutil.Process().children(recursive=True)) - PROCESSES_BEFORE
    return [child for child in children if not is_helper(child) and not has_ended(child)]


def is_helper(process):
    with suppress(psutil.Error):  # it may have ended meanwhile
        words = " ".join(process.cmdline())
        return "resource_tracker" in words or ("forkserver" in words and process.ppid() == os.getpid())
    return False


def describe(context):
    """Return where the rank is, the sum over all ranks of 10 to the power of each, and a variable."""
    total = torch.tensor([10**context.rank], device=context.device)
    dist.all_reduce(total)
    return context, dist.get_backend(), torch.get_num_threads(), total.item(), os.environ.get("GREETING")


def raise_on_rank_1(context, error):
    if context.rank == 1:
        raise error
    time.sleep(60)


def end_on_rank_1(context, end, number):
    if context.rank == 1:
        end(number)
    dist.all_reduce(torch.zeros(1))


def reduce_once_too_often_on_rank_0(context, folder):
    (folder / str(context.rank)).touch()
    if context.rank == 0:
        dist.all_reduce(torch.zeros(1))
    else:
        time.sleep(60)


def return_what_cannot_be_pickled(context):
    return lambda: context


def use_the_thread_pool(context):
    torch.set_num_threads(2)
    return (torch.ones(1000, 1000) @ torch.ones(1000, 1000)).sum().item()


def wait_for(*paths):
    deadline = time.monotonic() + PATIENCE_S
    while not all(path.exists() for path in paths) and time.monotonic() < deadline:
        time.sleep(0.01)


def join_late_on_rank_0(folder, *args, rank, **words):
    JOIN(*args, rank=rank, **words)
    if rank == 0:
        wait_for(folder / "1")
        time.sleep(0.3)
    (folder / str(rank)).touch()


def joined(_context, folder):
    return sorted(path.name for path in folder.iterdir())


def leave_a_daemon(_context, told, ending):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            told.with_suffix(".new").write_text(str(os.getpid()))
            told.with_suffix(".new").rename(told)
            time.sleep(60)
        os._exit(0)
    wait_for(told)
    if ending == "dies":
        os._exit(3)


def test_results_come_in_rank_order_and_every_rank_knows_its_place(start, monkeypatch):
    world_size, threads = 3, 1 if start == "forked" else 2
    monkeypatch.setattr(starting, "threads_per_rank", lambda _world_size: threads)
    monkeypatch.setenv("GREETING", greeting := f"good evening {time.time()}")  # set after the fork server has started
    results = run_ranks(describe, world_size, backend="gloo")
    assert [context.rank for context, *_ in results] == list(range(world_size))
    for context, *seen in results:
        assert (context.world_size, context.backend, context.device) == (world_size, "gloo", torch.device("cpu"))
        assert context.group_setup_ms > 0
        assert seen == ["gloo", threads, 111, greeting]


@forked
def test_no_rank_begins_before_all_have_joined(start, monkeypatch, tmp_path):
    """A rank that ended early would cut off those still connecting to it."""
    monkeypatch.setattr(dist, "init_process_group", partial(join_late_on_rank_0, tmp_path))
    assert run_ranks(joined, 2, backend="gloo", args=(tmp_path,)) == [["0", "1"]] * 2


@pytest.mark.parametrize(("cores", "threads"), [(5, 2), (2, 1), (1, 1)])
def test_cores_are_divided_as_threads_and_each_rank_gets_at_least_one(monkeypatch, cores, threads):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(cores)))
    assert starting.threads_per_rank(2) == threads


def test_an_exception_is_raised_with_rank_and_traceback_and_nothing_is_left(start, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(RankFailed, match="rank 1 of 2 raised ValueError: a bad weight") as failure:
        run_ranks(raise_on_rank_1, 2, backend="gloo", args=(ValueError("a bad weight"),))
    assert failure.value.rank == 1
    assert "in raise_on_rank_1" in str(failure.value)
    assert not list(tmp_path.glob("ranks-*"))
    assert not ranks_alive()


@pytest.mark.parametrize("error", [Skipped("no such thing"), torch.OutOfMemoryError("CUDA out of memory")])
@forked
def test_an_outcome_keeps_its_type_and_ends_the_others_at_once(start, error):
    started = time.monotonic()
    with pytest.raises(type(error), match=str(error)) as raised:
        run_ranks(raise_on_rank_1, 3, backend="gloo", args=(error,))
    assert time.monotonic() - started < 30  # of the 60 s that they sleep
    assert raised.value.__cause__.rank == 1
    assert not ranks_alive()


@pytest.mark.parametrize(
    ("end", "number", "how"),
    [(signal.raise_signal, signal.SIGKILL, "died by SIGKILL"), (os._exit, 3, "ended with exit code 3")],
)
def test_the_rank_that_ended_early_is_named_with_how_it_ended(start, end, number, how):
    with pytest.raises(RankFailed, match=rf"^rank 1 of 3 {how}") as failure:
        run_ranks(end_on_rank_1, 3, backend="gloo", args=(end, number))
    assert failure.value.rank == 1
    assert not ranks_alive()


@forked
def test_a_result_that_cannot_be_pickled_is_a_failure(start):
    with pytest.raises(RankFailed, match=r"of 2 raised .*pickle"):
        run_ranks(return_what_cannot_be_pickled, 2, backend="gloo")


def test_a_hang_ends_at_the_timeout_and_reports_the_stack(start, monkeypatch, tmp_path):
    def wait_until_all_hang(answers, timeout_s):
        waited_for.append(timeout_s)
        wait_for(tmp_path / "0", tmp_path / "1")
        return wait(answers, 0.1)

    waited_for, wait = [], starting.wait
    monkeypatch.setattr(starting, "wait", wait_until_all_hang)
    with pytest.raises(RankFailed, match="rank 0, 1 of 2 sent no result within 100 s") as failure:
        run_ranks(reduce_once_too_often_on_rank_0, 2, backend="gloo", timeout_s=100, args=(tmp_path,))
    assert 0 < waited_for[0] <= 100
    assert str(failure.value).count("in reduce_once_too_often_on_rank_0") == 2
    assert not ranks_alive()


def python(*words, **variables):
    """Start Python in a process whose libraries start no threads, which would prevent forking."""
    variables = {"PYTHONPATH": str(ROOT / "src"), "OPENBLAS_NUM_THREADS": "1", **variables}
    return subprocess.Popen([sys.executable, *words], env=os.environ | variables, stdout=subprocess.PIPE, text=True)


def test_ranks_are_forked_only_on_the_cpu_and_from_a_single_thread():
    script = (
        "import os, threading, torch\n"
        "from pipeline.parallel.processes.starting import _can_fork\n"
        "alone = _can_fork('cpu'), _can_fork('cuda')\n"
        "threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        "print(*alone, _can_fork('cpu'), flush=True)\n"
        "os._exit(0)"
    )
    assert python("-c", script).communicate()[0].split() == ["True", "False", "False"]


@pytest.mark.parametrize(("opened", "started"), [("/dev/nvidia-uvm", True), ("/dev/nvidiactl", False)])
def test_cuda_counts_as_started_once_its_driver_is_open_but_not_for_nvml(monkeypatch, opened, started):
    monkeypatch.setattr(os, "readlink", lambda _path: opened)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    assert starting._cuda_started() == started


def test_a_used_thread_pool_does_not_hang_the_ranks():
    assert use_the_thread_pool(None) == 1e9
    assert run_ranks(use_the_thread_pool, 2, backend="gloo") == [1e9, 1e9]


@pytest.mark.parametrize("way", ["forked", "fresh"])
def test_ranks_die_with_their_parent(tmp_path, way):
    from ...processes import assert_ended  # here, because fresh ranks import this module without its package

    script = tmp_path / "orphans.py"
    script.write_text(ORPHANS)
    parent = python(script, way, TMPDIR=str(tmp_path))
    rank = psutil.Process(int(parent.stdout.readline()))
    assert (rank.ppid() == parent.pid) == (way == "forked")
    parent.kill()
    parent.wait()
    assert_ended([rank])


@pytest.mark.parametrize(
    ("start", "ending"), [("forked", "returns"), ("forked", "dies"), ("fresh", "dies")], indirect=["start"]
)
def test_a_daemon_that_a_rank_leaves_is_killed_and_blocks_nobody(start, tmp_path, ending):
    with pytest.raises(RankFailed, match="ended with exit code 3") if ending == "dies" else nullcontext():
        run_ranks(leave_a_daemon, 1, backend="gloo", args=(tmp_path / "daemon", ending))
    assert not psutil.pid_exists(int((tmp_path / "daemon").read_text()))


def test_a_temporary_folder_with_a_long_non_utf_8_name_works(tmp_path):
    """Runs in a separate process, which has no fork server yet."""
    folder = tmp_path / os.fsdecode(b"\xff" * 110)
    folder.mkdir()
    (tmp_path / "script.py").write_text(ORPHANS.replace("time.sleep(60)", ""))
    alone = python(tmp_path / "script.py", "fresh", TMPDIR=str(folder))
    alone.communicate()
    assert alone.returncode == 0
    assert not list(folder.iterdir())


@pytest.mark.parametrize(
    ("named", "reason"),
    [
        ("nix0", "GLOO_SOCKET_IFNAME names nix0, this machine has .*lo"),
        (None, "no network interface reaches 127.0.0.1: Network is unreachable"),
    ],
)
@forked
def test_without_a_network_interface_ranks_are_skipped_with_the_reason(start, monkeypatch, named, reason):
    def unreachable(_socket, _address):
        raise OSError(errno.ENETUNREACH, os.strerror(errno.ENETUNREACH))

    monkeypatch.setattr(rank.socket, "socket", type("Socket", (socket.socket,), {"connect": unreachable}))
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    if named:
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", named)
    with pytest.raises(Skipped, match=reason):
        run_ranks(describe, 1, backend="gloo")


@pytest.mark.parametrize(
    ("function", "backend", "device_type", "message"),
    [
        (describe, "mpi", "cpu", "backend must be one of gloo, nccl, got 'mpi'"),
        (describe, "gloo", "tpu", "device_type must be one of cpu, cuda, got 'tpu'"),
        (describe, "nccl", "cpu", "nccl needs device_type cuda"),
        (describe, "nccl", "cuda", "2000 ranks need 2000 GPUs"),
        (lambda context: None, "gloo", "cpu", "lambda"),
    ],
)
def test_unusable_backends_devices_and_functions_are_refused_by_name(function, backend, device_type, message):
    with pytest.raises(ValueError, match=message):
        run_ranks(function, 2000, backend=backend, device_type=device_type)


@pytest.mark.gpu
def test_every_nccl_rank_has_its_own_gpu():
    results = run_ranks(describe, torch.cuda.device_count(), backend="nccl", device_type="cuda")
    assert [context.device for context, *_ in results] == [torch.device("cuda", rank) for rank in range(len(results))]
    assert {backend for _, backend, *_ in results} == {"nccl"}


def import_alone(context):
    sys.modules[f"pipeline.of_rank_{context.rank}"] = ModuleType("")
    if context.rank:
        raise Skipped("no more")


@pytest.mark.usefixtures("start")
def test_the_caller_knows_what_ranks_imported_even_ranks_that_failed(monkeypatch):
    monkeypatch.setattr(loaded_modules, "_loaded_elsewhere", set())
    with pytest.raises(Skipped):
        run_ranks(import_alone, 2, backend="gloo")
    assert {"pipeline.of_rank_0", "pipeline.of_rank_1"} <= loaded_modules.loaded_modules()
