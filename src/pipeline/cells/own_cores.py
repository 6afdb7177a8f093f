"""Cores of its own for each GPU, so that cells on different GPUs of a host leave each other's times as they are."""

import os
from collections.abc import Collection, Sequence
from pathlib import Path

from pipeline.instruments.machine.gpus import gpus_on_host

# For the threads that launch a GPU's work, autograd's and the collectives', and what else the process does.
MIN_CORES_PER_GPU = 4
TOPOLOGY = Path("/sys/devices/system/cpu")


def each_gpu_has_its_own() -> bool:
    """Tell whether this host has several GPUs and enough cores for each."""
    gpus = gpus_on_host()
    return len(gpus) > 1 and all(gpu.index is not None for gpu in gpus) and per_gpu() >= MIN_CORES_PER_GPU


def keep_to_those_of(device_ids: Collection[str], at_most: int = 0) -> set[int]:
    """Keep this process, and all that it starts, to the cores of these GPUs, `at_most` of them or all; return them."""
    gpus = gpus_on_host()
    usable = by_physical_core(os.sched_getaffinity(0))
    cores = share_of([gpu.index for gpu in gpus if gpu.id in device_ids], len(gpus), usable)
    chosen = cores[: at_most or len(cores)]
    os.sched_setaffinity(0, chosen)
    return set(chosen)


def per_gpu() -> int:
    """Return how many cores each GPU of this host has."""
    return len(os.sched_getaffinity(0)) // len(gpus_on_host())


def share_of(indices: Sequence[int | None], count: int, cores: Sequence[int]) -> list[int]:
    """Return the cores of some of `count` GPUs: the first GPU has the first, which is on the same node of memory."""
    size = len(cores) // count
    return [core for index in range(count) if index in indices for core in cores[index * size :][:size]]


def by_physical_core(cores: Collection[int], topology: Path = TOPOLOGY) -> list[int]:
    """Sort logical cores so that those of one physical core stand together; a hidden topology counts each as one."""

    def first_sibling(core: int) -> int:
        try:
            siblings = (topology / f"cpu{core}/topology/thread_siblings_list").read_text(encoding="utf-8")
        except OSError:
            return core
        return int(siblings.replace("-", ",").split(",")[0])

    return sorted(cores, key=lambda core: (first_sibling(core), core))
