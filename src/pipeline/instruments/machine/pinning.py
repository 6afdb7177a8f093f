"""Pin the threads that launch a GPU's work to one core of their own.

Backward launches kernels from autograd's thread for the GPU while its caller waits. Left alone, the scheduler moves
both between cores, which makes a step of many small kernels slower and hardly repeatable. They never run at the same
time, so they share a core: with one core each, a core would sleep while the other works, and be slow to wake.
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
    """Pin the calling thread and autograd's thread for this GPU to one core; restore their affinity on exit.

    Yields the core's number. Yields None and pins nothing on a CPU, whose work needs all its cores, or if there are too
    few cores or the system forbids it. Threads started inside begin on the same core, so compile and start process
    groups before. Inside, torch computes on the host with one thread: the threads of a pool on one core would wait for
    each other for minutes.
    """
    core = core_for(rank, world_size) if device.type == "cuda" else None
    if core is None:
        yield None
        return
    allowed, threads = os.sched_getaffinity(0), _threads()
    launching = {_autograd_thread(device), threading.get_native_id()}
    former = {thread: os.sched_getaffinity(thread) for thread in launching}
    computing = torch.get_num_threads()
    try:
        is_confined = _confine({thread: {core} for thread in launching})
        torch.set_num_threads(1 if is_confined else computing)
        yield core if is_confined else None
    finally:
        _confine(former | dict.fromkeys(_threads() - threads - launching, allowed))
        torch.set_num_threads(computing)


def core_for(rank: int, world_size: int) -> int | None:
    """Return the core of this rank, which no other rank on the host gets; None if there are too few cores.

    Only cores that this process may use count, preferably near the rank's GPU if the driver tells which are.
    """
    if not hasattr(os, "sched_getaffinity"):  # not Linux
        return None
    cores = in_order_of_use(os.sched_getaffinity(0))
    return divide_cores(cores, [near_cores(gpu) for gpu in visible_gpus()], world_size)[rank]


def divide_cores(cores: Sequence[int], near: Sequence[Collection[int]], world_size: int) -> list[int | None]:
    """Give each rank a core of its own, or None to all if there are too few.

    cores: in order of preference; near: for each rank the cores near its GPU, empty or left out if unknown.
    """
    if len(cores) < world_size:
        return [None] * world_size
    left = list(cores)
    divided: list[int | None] = []
    for rank in range(world_size):
        close = near[rank] if rank < len(near) else ()
        core = min(left, key=lambda core: core not in close)  # ties: the first
        left.remove(core)
        divided.append(core)
    return divided


def in_order_of_use(cores: Collection[int], topology: Path = TOPOLOGY) -> list[int]:
    """Sort logical cores: first threads of physical cores before second ones, and high numbers first in both.

    Interrupts and other processes gather on the low numbers. If the topology is hidden, each counts as a physical core.
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
    """Return the logical cores on the NUMA node of a GPU; empty if the driver does not tell."""
    words = (os.cpu_count() or 1) // BITS_PER_WORD + 1
    masks = ask(pynvml.nvmlDeviceGetCpuAffinity, gpu.handle, words) if gpu.handle is not None else None
    bits = range(BITS_PER_WORD)
    return {BITS_PER_WORD * word + bit for word, mask in enumerate(masks or ()) for bit in bits if mask >> bit & 1}


def _confine(affinities: Mapping[int, Collection[int]]) -> bool:
    """Set the cores of those threads that still exist; return whether the system allowed it."""
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
    """Return the native id of autograd's thread for this device; the first backward pass starts that thread."""
    ids = []
    leaf = torch.ones((), device=device, requires_grad=True)
    leaf.register_hook(lambda _gradient: ids.append(threading.get_native_id()))
    (2 * leaf).backward()
    return ids[0]
