"""Give each GPU its own cores, so that cells on different GPUs of a host do not change each other's times."""

import os
from collections.abc import Collection, Sequence
from pathlib import Path

from pipeline.instruments.machine.gpus import gpus_on_host

# For the threads that launch GPU work, autograd's, the collectives', and the rest of the process.
MIN_CORES_PER_GPU = 4
TOPOLOGY = Path("/sys/devices/system/cpu")


def each_gpu_has_own_cores() -> bool:
    """Tell whether this host has several GPUs and enough cores for each."""
    gpus = gpus_on_host()
    return len(gpus) > 1 and all(gpu.index is not None for gpu in gpus) and cores_per_gpu() >= MIN_CORES_PER_GPU


def pin_to_cores_of(device_ids: Collection[str], at_most: int = 0) -> set[int]:
    """Pin this process and its future children to these GPUs' cores, `at_most` of them (0: all); return the cores."""
    gpus = gpus_on_host()
    usable = sort_by_physical_core(os.sched_getaffinity(0))
    cores = cores_of_gpus([gpu.index for gpu in gpus if gpu.id in device_ids], len(gpus), usable)
    chosen = cores[: at_most or len(cores)]
    os.sched_setaffinity(0, chosen)
    return set(chosen)


def cores_per_gpu() -> int:
    """Return how many cores each GPU of this host has."""
    return len(os.sched_getaffinity(0)) // len(gpus_on_host())


def cores_of_gpus(indices: Sequence[int | None], count: int, cores: Sequence[int]) -> list[int]:
    """Return the cores of the GPUs `indices` of `count`: the first GPU gets the first cores, on the same NUMA node."""
    size = len(cores) // count
    return [core for index in range(count) if index in indices for core in cores[index * size :][:size]]


def sort_by_physical_core(cores: Collection[int], topology: Path = TOPOLOGY) -> list[int]:
    """Sort logical cores so that those of one physical core are adjacent; without topology files, sort by number."""

    def first_sibling(core: int) -> int:
        try:
            siblings = (topology / f"cpu{core}/topology/thread_siblings_list").read_text(encoding="utf-8")
        except OSError:
            return core
        return int(siblings.replace("-", ",").split(",")[0])

    return sorted(cores, key=lambda core: (first_sibling(core), core))
