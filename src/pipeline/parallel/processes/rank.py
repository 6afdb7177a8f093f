"""The rank's side of `run_ranks`: set device and threads, join the process group, run the function, send the result."""

import ctypes
import faulthandler
import importlib
import importlib.util
import inspect
import multiprocessing
import os
import pickle
import signal
import socket
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
INTERFACE_VARIABLE = "GLOO_SOCKET_IFNAME"
LOOPBACK = ("127.0.0.1", 9)  # any port does
OUTCOMES = (Skipped, MemoryError, torch.OutOfMemoryError)


@dataclass(frozen=True)
class RankContext:
    """A rank's number, group and device, and how long its process group took to set up."""

    rank: int
    world_size: int
    backend: str
    device: torch.device
    group_setup_ms: float


@dataclass(frozen=True)
class Group:
    """Settings shared by all ranks of one run on one node.

    first_rank: the lowest rank on this node, which has the first device; store_at: host and port of the store through
    which ranks of several nodes meet; None: all ranks are on this machine and meet through a file.
    """

    world_size: int
    backend: str
    device_type: str
    threads: int
    timeout_s: float
    folder: Path
    first_rank: int = 0
    store_at: tuple[str, int] | None = None

    def store(self) -> dist.Store:
        """Return the store through which the ranks meet."""
        timeout = timedelta(seconds=self.timeout_s)
        if self.store_at is not None:
            return dist.TCPStore(*self.store_at, is_master=False, timeout=timeout)
        store = dist.FileStore(os.fsencode(self.folder / "store"), self.world_size)  # type: ignore[arg-type]  # bytes
        store.set_timeout(timeout)
        return store

    def stack_path(self, rank: int) -> Path:
        """Return the path to which a rank writes its stack when asked."""
        return self.folder / f"stack-{rank}"


class Failure(NamedTuple):
    """How a rank failed: when (Unix time), one line, its traceback, and the exception if it is an outcome."""

    at: float
    summary: str
    traceback: str
    outcome: BaseException | None


def location(function: Callable[..., Any]) -> tuple[str, str]:
    """Return the name and the file of a function's module, from which `be_rank_afresh` imports it."""
    return function.__module__, inspect.getfile(function)


def be_rank_afresh(
    group: Group, rank: int, sender: Connection, module: tuple[str, str], call: bytes, environment: dict[str, str]
) -> None:
    """Be a rank in a fresh interpreter, which gets only these arguments from its caller."""
    os.environ.clear()
    os.environ.update(environment)
    try:
        import_from(*module)
        function, args = pickle.loads(call)
    except BaseException as error:
        _answer(sender, _failure(error))
        return
    be_rank(group, rank, sender, function, args)


def be_rank(group: Group, rank: int, sender: Connection, function: Callable[..., Any], args: tuple) -> None:
    """Run the function as a rank of the group; send its pickled result or its failure."""
    _die_with_parent()
    os.register_at_fork(after_in_child=sender.close)  # the caller waits until no process holds it open
    stack = group.stack_path(rank).open("w", encoding="utf-8")
    faulthandler.register(signal.SIGUSR1, file=stack, all_threads=False)
    try:
        context = _join(group, rank)
        # By value: multiprocessing would share a tensor's memory with a process that is about to end.
        result = pickle.dumps(function(context, *args))
        _leave(context)
    except BaseException as error:
        # The group is not destroyed: other ranks would fail because of that, and might report first.
        _answer(sender, _failure(error))
    else:
        _answer(sender, result)


def _answer(sender: Connection, answer: bytes | Failure) -> None:
    """Send an answer with the modules that this rank has imported, for the record's freshness."""
    sender.send((answer, loaded_modules()))


def import_from(module: str, path: str) -> None:
    """Import a module by name, or from its file if the name cannot be imported (pytest's test modules)."""
    if module in sys.modules:
        return
    try:
        importlib.import_module(module)
    except ModuleNotFoundError:
        names = module.split(".")
        for package in (".".join(names[:length]) for length in range(1, len(names))):
            sys.modules.setdefault(package, ModuleType(package))  # unpickling imports these first
        spec = importlib.util.spec_from_file_location(module, path)
        if spec is None or spec.loader is None:
            raise ImportError(f"{path}: not a Python module") from None
        sys.modules[module] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[module])


def _die_with_parent() -> None:
    """Kill this process when its parent dies: the kernel watches the forking process, a thread the requesting one.

    Both are needed: a fork server outlives its caller while its children live, because they hold its connection open.
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
    _choose_interface(group.store_at or LOOPBACK)
    store = group.store()
    # The time of the set-up must not include waiting for ranks that start late.
    _meet(store, "here", group, rank)
    started = time.perf_counter()
    dist.init_process_group(
        group.backend,
        store=store,
        rank=rank,
        world_size=group.world_size,
        timeout=timedelta(seconds=group.timeout_s),
        # Given the device, NCCL sets up its communicator now, not in the first collective, and fails early.
        device_id=device if group.backend == "nccl" else None,
    )
    setup_ms = (time.perf_counter() - started) * 1e3
    # gloo returns once a rank's own connections are up: a rank that ended now would cut off those still connecting.
    _meet(store, "joined", group, rank)
    return RankContext(rank, group.world_size, group.backend, device, setup_ms)


def _meet(store: dist.Store, name: str, group: Group, rank: int) -> None:
    """Wait until every rank has called this with the same name; use each name only once."""
    store.set(f"{name}/{rank}", "")
    store.wait([f"{name}/{other}" for other in range(group.world_size)])


def _take_device(group: Group, rank: int) -> torch.device:
    torch.set_num_threads(group.threads)
    if group.device_type == "cpu":
        return torch.device("cpu")
    device = torch.device("cuda", rank - group.first_rank)
    torch.cuda.set_device(device)
    torch.cuda.synchronize(device)  # creates the CUDA context, which is not part of the group's setup
    return device


def _choose_interface(address: tuple[str, int]) -> None:
    """Tell gloo which network interface reaches an address, because the machine's host name may not resolve.

    Raises Skipped if there is none, or if an interface that the user has named does not exist.
    """
    interfaces = psutil.net_if_addrs()
    named = os.environ.get(INTERFACE_VARIABLE)
    if named is None:
        own = _own_address(address)
        named = next(name for name, addresses in interfaces.items() if any(each.address == own for each in addresses))
        os.environ[INTERFACE_VARIABLE] = named
    unknown = [name for name in named.split(",") if name not in interfaces]
    if unknown:
        raise Skipped(f"{INTERFACE_VARIABLE} names {unknown[0]}, this machine has {', '.join(interfaces) or 'none'}")


def _own_address(address: tuple[str, int]) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(address)  # sends nothing
        except OSError as error:
            raise Skipped(f"ranks cannot meet: no network interface reaches {address[0]}: {error.strerror}") from None
        return probe.getsockname()[0]


def _leave(context: RankContext) -> None:
    if context.device.type == "cuda":
        torch.cuda.synchronize(context.device)
    dist.destroy_process_group()


def _failure(error: BaseException) -> Failure:
    summary = traceback.format_exception_only(error)[-1].strip()
    # As the outcome's base type, because the caller may be unable to import a subclass.
    outcome = next((kind(str(error)) for kind in OUTCOMES if isinstance(error, kind)), None)
    return Failure(time.time(), f"raised {summary}", "".join(traceback.format_exception(error)).rstrip(), outcome)
