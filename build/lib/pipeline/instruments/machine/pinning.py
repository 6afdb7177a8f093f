"""Pinning: the threads that launch a GPU's work, kept on one core of their own.

Backward launches from a thread that autograd keeps for the GPU, while its caller waits. Left alone, the scheduler moves
both between cores, which makes a step of many small kernels slower and hardly repeatable. They never run at the same
time, and share a core: with one each a core sleeps while the other works, and is slow to wake.
"""

import os
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pynvml
import torch

from pipeline.instruments.machine.gpus import Gpu, ask, visible_gpus

TOPOLOGY = Path("/sys/devices/system/cpu")
THREADS = Path("/proc/self/task")
BITS_PER_WORD = 64


@contextmanager
def pinned(device: torch.device, rank: int = 0, world_size: int = 1) -> Iterator[int | None]:
    """Pin the calling thread and autograd's thread for this GPU to a core; on leaving, let them run as before.

    Yields the core by the kernel's number; None, with nothing pinned, on a CPU, whose work needs all its cores, and
    where there are too few cores or the system forbids it. Threads that start inside begin on the caller's core:
    compile, and start process groups, before.
    """
    core = core_for(rank, world_size) if device.type == "cuda" else None
    if core is None:
        yield None
        return
    allowed, threads = os.sched_getaffinity(0), _threads()
    launching = {_autograd_thread(device), threading.get_native_id()}
    former = {thread: os.sched_getaffinity(thread) for thread in launching}
    try:
        yield core if _confine({thread: {core} for thread in launching}) else None
    finally:
        _confine(former | dict.fromkeys(_threads() - threads - launching, allowed))


def core_for(rank: int, world_size: int) -> int | None:
    """Return the core of one of the ranks on this host, which no other rank has; None where there are too few.

    Only cores that this process may use, near the rank's GPU where the driver tells.
    """
    if not hasattr(os, "sched_getaffinity"):  # not Linux
        return None
    cores = in_order_of_use(os.sched_getaffinity(0))
    return divide_cores(cores, [near_cores(gpu) for gpu in visible_gpus()], world_size)[rank]


def divide_cores(cores: Sequence[int], near: Sequence[Collection[int]], world_size: int) -> list[int | None]:
    """Give each rank a core of its own, or None to all where there are too few.

    cores: in order of use; near: for each rank those near its GPU, empty or left out where nothing tells.
    """
    if len(cores) < world_size:
        return [None] * world_size
    left = list(cores)
    divided: list[int | None] = []
    for rank in range(world_size):
        close = near[rank] if rank < len(near) else ()
        core = min(left, key=lambda core: core not in close)  # the first of equals
        left.remove(core)
        divided.append(core)
    return divided


def in_order_of_use(cores: Collection[int], topology: Path = TOPOLOGY) -> list[int]:
    """Sort logical cores: first threads of physical cores before second ones, and in both high numbers first.

    Interrupts and whatever else runs gather on the low ones. Where the topology is hidden each counts as a physical
    core.
    """
    seen: set[str] = set()
    second = set()
    for core in sorted(cores):
        with suppress(OSError):
            siblings = (topology / f"cpu{core}/topology/thread_siblings_list").read_text(encoding="utf-8")
            if siblings in seen:
                second.add(core)
            seen.add(siblings)
    return sorted(cores, key=lambda core: (core in second, -core))


def near_cores(gpu: Gpu) -> set[int]:
    """Return the logical cores on the NUMA node of a GPU; empty where the driver does not tell."""
    words = (os.cpu_count() or 1) // BITS_PER_WORD + 1
    masks = ask(pynvml.nvmlDeviceGetCpuAffinity, gpu.handle, words) if gpu.handle is not None else None
    bits = range(BITS_PER_WORD)
    return {BITS_PER_WORD * word + bit for word, mask in enumerate(masks or ()) for bit in bits if mask >> bit & 1}


def _confine(affinities: Mapping[int, Collection[int]]) -> bool:
    """Set the cores of threads that are still there; return whether the system allowed it."""
    try:
        for thread, cores in affinities.items():
            with suppress(ProcessLookupError):
                os.sched_setaffinity(thread, cores)
    except OSError:
        return False
    return True


def _threads() -> set[int]:
    return {int(entry.name) for entry in THREADS.iterdir()}


def _autograd_thread(device: torch.device) -> int:
    """Return the system's id of the thread in which backward runs for this device, which starts with the first."""
    ids = []
    leaf = torch.ones((), device=device, requires_grad=True)
    leaf.register_hook(lambda _gradient: ids.append(threading.get_native_id()))
    (2 * leaf).backward()
    return ids[0]
