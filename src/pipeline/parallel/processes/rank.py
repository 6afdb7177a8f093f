"""A rank's side of `run_ranks`: take a device and threads, join the process group, run the function, answer."""

import ctypes
import faulthandler
import importlib
import importlib.util
import inspect
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import psutil
import torch
import torch.distributed as dist

from pipeline.errors import Skipped
from pipeline.loaded_modules import loaded_modules

PR_SET_PDEATHSIG = 1
OUTCOMES = (Skipped, MemoryError, torch.OutOfMemoryError)


@dataclass(frozen=True)
class RankContext:
    """What a rank is told: which it is, its device, and how long its process group took to set up."""

    rank: int
    world_size: int
    backend: str
    device: torch.device
    group_setup_ms: float


@dataclass(frozen=True)
class Group:
    """What the ranks of one run share."""

    world_size: int
    backend: str
    device_type: str
    threads: int
    timeout_s: float
    folder: Path

    def stack_path(self, rank: int) -> Path:
        """Name the file that a rank writes its stack to when asked."""
        return self.folder / f"stack-{rank}"


class Failure(NamedTuple):
    """How a rank failed: when (monotonic clock), one line, its traceback, and the exception if it tells an outcome."""

    at: float
    summary: str
    traceback: str
    outcome: BaseException | None


def location(function: Callable[..., Any]) -> tuple[str, str]:
    """Return the name and the file of a function's module, by which `be_rank_afresh` finds it."""
    return function.__module__, inspect.getfile(function)


def be_rank_afresh(
    group: Group, rank: int, sender: Connection, place: tuple[str, str], call: bytes, environment: dict[str, str]
) -> None:
    """Be a rank in an interpreter that knows nothing of its caller but what it is given here."""
    os.environ.clear()
    os.environ.update(environment)
    try:
        _import_from(*place)
        function, args = pickle.loads(call)
    except BaseException as error:
        _answer(sender, _failure(error))
        return
    be_rank(group, rank, sender, function, args)


def be_rank(group: Group, rank: int, sender: Connection, function: Callable[..., Any], args: tuple) -> None:
    """Run the function as a rank of the group and send back its pickled result or its failure."""
    _die_with_parent()
    stack = group.stack_path(rank).open("w")
    faulthandler.register(signal.SIGUSR1, file=stack, all_threads=False)
    try:
        context = _join(group, rank)
        # By value: multiprocessing would share a tensor's memory with a process that is about to end.
        result = pickle.dumps(function(context, *args))
        _leave(context)
    except BaseException as error:
        # The group stays as it is: the others would fail on its end, and might be heard first.
        _answer(sender, _failure(error))
    else:
        _answer(sender, result)


def _answer(sender: Connection, answer: bytes | Failure) -> None:
    """Send an answer, and with it what this rank has imported: it is part of what was measured."""
    sender.send((answer, loaded_modules()))


def _import_from(module: str, path: str) -> None:
    """Import a module under its name, from its file where the name alone does not lead there (pytest's modules)."""
    if module in sys.modules:
        return
    try:
        importlib.import_module(module)
    except ModuleNotFoundError:
        names = module.split(".")
        for package in (".".join(names[:length]) for length in range(1, len(names))):
            sys.modules.setdefault(package, ModuleType(package))  # unpickling asks for these first
        spec = importlib.util.spec_from_file_location(module, path)
        if spec is None or spec.loader is None:
            raise ImportError(f"{path}: not a Python module") from None
        sys.modules[module] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[module])


def _die_with_parent() -> None:
    """Have the kernel end this process with the one that forked it, and a thread with the one that asked for it.

    A fork server is not ended by its caller's death while its children live, for they keep its connection open.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    threading.Thread(target=_await_parents_death, daemon=True).start()


def _await_parents_death() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None  # a rank is always started by multiprocessing
    parent.join()
    os.kill(os.getpid(), signal.SIGKILL)


def _join(group: Group, rank: int) -> RankContext:
    device = _take_device(group, rank)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", _loopback())
    timeout = timedelta(seconds=group.timeout_s)
    store = dist.FileStore(str(group.folder / "store"), group.world_size)
    store.set_timeout(timeout)
    # So that the time of the set-up holds no late start.
    _meet(store, "here", group, rank)
    started = time.perf_counter()
    dist.init_process_group(
        group.backend,
        store=store,
        rank=rank,
        world_size=group.world_size,
        timeout=timeout,
        # With the device NCCL sets up its communicator now, not in the first collective: its errors come early.
        device_id=device if group.backend == "nccl" else None,
    )
    setup_ms = (time.perf_counter() - started) * 1e3
    # gloo lets a rank go once its own connections stand: one that ended now would cut off those still connecting to it.
    _meet(store, "joined", group, rank)
    return RankContext(rank, group.world_size, group.backend, device, setup_ms)


def _meet(store: dist.Store, place: str, group: Group, rank: int) -> None:
    """Wait until every rank has come to the place, a name used once."""
    store.set(f"{place}/{rank}", "")
    store.wait([f"{place}/{other}" for other in range(group.world_size)])


def _take_device(group: Group, rank: int) -> torch.device:
    torch.set_num_threads(group.threads)
    if group.device_type == "cpu":
        return torch.device("cpu")
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    torch.cuda.synchronize(device)  # makes the context, which is no part of the group's set-up
    return device


def _loopback() -> str:
    """Name the loopback interface: the ranks are on one machine, and its host name may lead nowhere."""
    addresses = psutil.net_if_addrs()
    return next(
        name for name, of_interface in addresses.items() if any(entry.address == "127.0.0.1" for entry in of_interface)
    )


def _leave(context: RankContext) -> None:
    if context.device.type == "cuda":
        torch.cuda.synchronize(context.device)
    dist.destroy_process_group()


def _failure(error: BaseException) -> Failure:
    summary = traceback.format_exception_only(error)[-1].strip()
    outcome = error if isinstance(error, OUTCOMES) else None
    return Failure(time.monotonic(), f"raised {summary}", "".join(traceback.format_exception(error)).rstrip(), outcome)
