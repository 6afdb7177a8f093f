"""Run one function in several processes, each a rank of one process group, and return all results.

CPU ranks are forked directly from a caller with a single thread, which takes milliseconds. A caller with more threads
(a used OpenMP pool) cannot be forked: the child would inherit their locks, but not the threads. Nor can one that has
started CUDA. Their ranks, and all ranks on GPUs, are forked from a fork server: a fresh interpreter that has imported
torch and lives as long as the caller.
"""

import contextlib
import multiprocessing
import os
import pickle
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

import torch

from pipeline.loaded_modules import add_loaded_elsewhere
from pipeline.parallel.processes.descendants import ending_orphans
from pipeline.parallel.processes.rank import Failure, Group, RankContext, be_rank, be_rank_afresh, location

__all__ = ["RankContext", "RankFailed", "run_ranks"]

BACKENDS = ("gloo", "nccl")
DEVICE_TYPES = ("cpu", "cuda")
# How long other ranks may take to fail after the first: a later failure often names the cause.
GRACE_S = 0.5
STACK_S = 2.0
BELOW = "in be_rank"  # the frame below the function's: once it is in the file, the frames above it are too
END_S = 5.0
MOST_TMPDIR_BYTES = 70  # the path of a socket has at most 107, and multiprocessing adds 32


class RankFailed(RuntimeError):
    """A rank raised, died or hung: the message has its number and traceback, and one line per other failed rank."""

    def __init__(self, rank: int, message: str) -> None:
        super().__init__(message)
        self.rank = rank


class Hang(NamedTuple):
    """A rank that has not answered: its stack, if known."""

    stack: str


# What each rank of a group sent: its pickled result, or how it failed or hung.
Answers = dict[int, bytes | Failure | Hang]


@dataclass
class _Rank:
    """The caller's view of a rank: its process, the pipe for its answer, and the answer."""

    rank: int
    process: multiprocessing.process.BaseProcess
    answers: Connection
    answer: bytes | Failure | None = None


def run_ranks(
    function: Callable[..., Any],
    world_size: int,
    *,
    backend: str,
    device_type: str = "cpu",
    timeout_s: float = 60.0,
    args: Sequence[Any] = (),
) -> list[Any]:
    """Run `function(context, *args)` in `world_size` processes and return their results in rank order.

    Each process has its device set (`cuda:{rank}`, or the CPU), its share of the cores as threads, and a process group
    of the backend (`gloo` or `nccl`). `function` must be defined at the top level of a module, because another
    interpreter may have to import it; arguments and results are pickled, results by value: tensors on the CPU.
    timeout_s: seconds for the whole run, including the start; also the time-out of each collective.

    Raises RankFailed as soon as one rank raises, dies or exceeds the time-out, and ends the other ranks. Outcomes
    (Skipped, out of memory) keep their own type, with the RankFailed as their cause. Raises ValueError for an unusable
    backend, device or function.
    """
    check(function, world_size, backend, device_type)
    deadline = time.monotonic() + timeout_s
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        group = Group(world_size, backend, device_type, threads_per_rank(world_size), timeout_s, Path(folder))
        return results(answers_of(group, range(world_size), function, args, deadline), group.timeout_s)


def answers_of(
    group: Group, ranks: Iterable[int], function: Callable[..., Any], args: Sequence[Any], deadline: float
) -> Answers:
    """Start these ranks of a group here and return their answers.

    Kills the ranks without an answer at the deadline, and everything that ranks have started.
    """
    is_forked = _can_fork(group.device_type)
    if not is_forked:
        _ensure_fork_server()
    started: list[_Rank] = []
    with ending_orphans():
        try:
            for rank in ranks:
                started.append(_start(group, rank, function, tuple(args), is_forked))
            _collect(started, deadline)
            failed = any(isinstance(rank.answer, Failure) for rank in started)
            return {rank.rank: rank.answer or Hang("" if failed else _stack(rank, group)) for rank in started}
        finally:
            _end(started)


def check(function: Callable[..., Any], world_size: int, backend: str, device_type: str) -> None:
    """Raise ValueError for an unusable backend, device or function."""
    if backend not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(BACKENDS)}, got {backend!r}")
    if device_type not in DEVICE_TYPES:
        raise ValueError(f"device_type must be one of {', '.join(DEVICE_TYPES)}, got {device_type!r}")
    if backend == "nccl" and device_type != "cuda":
        raise ValueError(f"backend nccl needs device_type cuda, got {device_type}")
    if world_size < 1:
        raise ValueError(f"world_size must be at least 1, got {world_size}")
    # device_count() asks NVML; is_available() would start CUDA in a process that needs no GPU itself.
    if device_type == "cuda" and torch.cuda.device_count() < world_size:
        raise ValueError(f"{world_size} ranks need {world_size} GPUs, {torch.cuda.device_count()} visible")
    if "<" in function.__qualname__:
        raise ValueError(f"{function.__qualname__} is defined inside a function: define it at the top of a module")


def threads_per_rank(num_ranks: int) -> int:
    """Divide this process's cores among this many ranks.

    Ranks are not pinned: on a single core gloo's thread and the rank's would wait for each other, which makes a small
    all-reduce several times slower; and this code does not know which cores are close to which GPU.
    """
    return max(1, len(os.sched_getaffinity(0)) // num_ranks)


def _ensure_fork_server() -> None:
    """Start the fork server if there is none, with its socket in a folder whose path is short enough."""
    # The main module too, or every rank would import it again.
    forkserver.set_forkserver_preload(["__main__", "torch", "torch.distributed"])
    usual = tempfile.tempdir
    if len(os.fsencode(tempfile.gettempdir())) > MOST_TMPDIR_BYTES:
        tempfile.tempdir = "/tmp"
    try:
        forkserver.ensure_running()
    finally:
        tempfile.tempdir = usual


def _start(group: Group, rank: int, function: Callable[..., Any], args: tuple, is_forked: bool) -> _Rank:
    answers, sender = multiprocessing.Pipe(duplex=False)
    name = f"rank-{rank}"
    process: multiprocessing.process.BaseProcess
    if is_forked:
        fork = multiprocessing.get_context("fork")
        process = fork.Process(target=be_rank, args=(group, rank, sender, function, args), name=name)
    else:
        server = multiprocessing.get_context("forkserver")
        call = (location(function), pickle.dumps((function, args)), dict(os.environ))
        process = server.Process(target=be_rank_afresh, args=(group, rank, sender, *call), name=name)
    process.start()
    # Now only the rank holds the writing end, so that its death closes the pipe.
    sender.close()
    return _Rank(rank, process, answers)


def _can_fork(device_type: str) -> bool:
    """Tell whether ranks can be forked from this process: on the CPU, with one thread and without CUDA."""
    # Never for GPUs: this process has used NVML, and a child that goes on using its parent's NVML, as NCCL would, is
    # not safe (https://github.com/NVIDIA/cuCascade/pull/138).
    return device_type == "cpu" and _has_one_thread() and not _cuda_started()


def _has_one_thread() -> bool:
    """Tell whether this process has a single thread; False where this is unknown (not Linux)."""
    return sys.platform == "linux" and len(os.listdir("/proc/self/task")) == 1


def _cuda_started() -> bool:
    """Tell whether CUDA's driver is in use, even if only for counting GPUs, which torch does not record."""
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the descriptor of this very listing
            if os.readlink(f"/proc/self/fd/{descriptor}") == "/dev/nvidia-uvm":
                return True
    return torch.cuda.is_initialized()


def _collect(ranks: list[_Rank], deadline: float) -> None:
    """Read answers until all are there, the deadline passes, or GRACE_S has passed since the first failure."""
    while waiting := {rank.answers: rank for rank in ranks if rank.answer is None}:
        ready = wait(list(waiting), max(0.0, deadline - time.monotonic()))
        if not ready:
            return
        for answers, rank in waiting.items():
            if answers in ready:
                rank.answer = _read(rank)
                if isinstance(rank.answer, Failure):
                    deadline = min(deadline, time.monotonic() + GRACE_S)


def _read(rank: _Rank) -> bytes | Failure:
    try:
        answer, modules = rank.answers.recv()
        add_loaded_elsewhere(modules)
        return answer
    except (EOFError, OSError):
        _await_end(rank.process)
        return Failure(0.0, _last_words(rank.process.exitcode), "", None)


def _await_end(process: multiprocessing.process.BaseProcess) -> None:
    """Wait up to END_S for the process to end; `join` would also wait for everything it has forked."""
    give_up = time.monotonic() + END_S
    while process.exitcode is None and time.monotonic() < give_up:
        time.sleep(0.002)


def _last_words(exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        return f"died by {signal.Signals(-exit_code).name}"
    return f"ended with exit code {exit_code} before it sent a result"


def results(answers: Answers, timeout_s: float) -> list[Any]:
    """Return what all ranks of a group returned, in rank order.

    Raises the first failure, preferring ranks that died silently to ranks that reported an error; if there is none,
    raises RankFailed with the ranks that did not answer in time.
    """
    world_size = len(answers)
    failures = {rank: answer for rank, answer in answers.items() if isinstance(answer, Failure)}
    hanging = {rank: answer for rank, answer in sorted(answers.items()) if isinstance(answer, Hang)}
    if failures:
        (first, failure), *later_failures = sorted(failures.items(), key=lambda entry: (entry[1].at, entry[0]))
        lines = [f"rank {first} of {world_size} {failure.summary}", failure.traceback]
        lines += [f"then rank {rank} {later.summary}" for rank, later in later_failures]
        error = RankFailed(first, "\n".join(line for line in lines if line))
        if failure.outcome is not None:
            raise failure.outcome from error
        raise error
    if hanging:
        stacks = [f"rank {rank} was at\n{hang.stack}" for rank, hang in hanging.items()]
        head = f"rank {', '.join(map(str, hanging))} of {world_size} sent no result within {timeout_s:g} s"
        raise RankFailed(next(iter(hanging)), "\n".join([head, *stacks]))
    return [pickle.loads(answer) for _, answer in sorted(answers.items()) if isinstance(answer, bytes)]


def _stack(rank: _Rank, group: Group) -> str:
    """Return the stack of a hanging rank, which it writes when signalled."""
    path = group.stack_path(rank.rank)
    if not path.exists():  # it does not handle the signal yet
        return "its start"
    assert rank.process.pid is not None  # it was started
    os.kill(rank.process.pid, signal.SIGUSR1)
    give_up = time.monotonic() + STACK_S
    while BELOW not in path.read_text(encoding="utf-8") and time.monotonic() < give_up:
        time.sleep(0.01)
    return path.read_text(encoding="utf-8")


def _end(ranks: list[_Rank]) -> None:
    """End every rank that still runs; a rank that sent its result has END_S to exit by itself."""
    for rank in ranks:
        if rank.answer is None or isinstance(rank.answer, Failure):
            rank.process.kill()
    for rank in ranks:
        _await_end(rank.process)
        if rank.process.exitcode is None:
            rank.process.kill()
            rank.process.join()
        rank.answers.close()
        rank.process.close()
