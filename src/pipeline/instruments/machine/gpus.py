"""List and describe the GPUs that this process may use, without starting CUDA.

NVIDIA GPUs are queried through NVML. AMD GPUs are queried through torch in a child process: a query in this one would
start the HIP runtime, after which choosing devices has no effect.
"""

import json
import os
import runpy
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from itertools import combinations
from pathlib import Path
from types import ModuleType
from typing import Any

import pynvml

_ROCM_QUERY = """
import json, torch
gpus = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
print(json.dumps([[gpu.name, gpu.total_memory] for gpu in gpus]))
"""

_PCIE_PATHS = {
    pynvml.NVML_TOPOLOGY_INTERNAL: "on one board",
    pynvml.NVML_TOPOLOGY_SINGLE: "through one PCIe switch",
    pynvml.NVML_TOPOLOGY_MULTIPLE: "through several PCIe switches",
    pynvml.NVML_TOPOLOGY_HOSTBRIDGE: "through a PCIe host bridge",
    pynvml.NVML_TOPOLOGY_NODE: "across PCIe host bridges of one NUMA node",
    pynvml.NVML_TOPOLOGY_SYSTEM: "across NUMA nodes",
}


@dataclass(frozen=True)
class Gpu:
    """One GPU that this process may use."""

    id: str  # its name in CUDA_VISIBLE_DEVICES: the UUID under NVML, HIP's index under ROCm
    index: int | None  # the driver's number, None for a MIG slice
    name: str
    memory_bytes: int | None
    handle: Any = None  # NVML's; None under ROCm


def visible_gpus() -> list[Gpu]:
    """List the GPUs that this process may use, in CUDA's order.

    Integers in CUDA_VISIBLE_DEVICES are taken in the driver's order (PCI); so does CUDA, unless a machine mixes GPU
    models and leaves CUDA_DEVICE_ORDER unset.
    """
    if visible_devices_variable() == "HIP_VISIBLE_DEVICES":
        return list(_rocm_gpus(os.environ.get("HIP_VISIBLE_DEVICES")))
    listing = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listing == "":  # do not start NVML, least of all in a child forked from a process that has
        return []
    # CUDA needs NVIDIA's driver, which includes NVML, so no NVML means no GPU.
    return _nvml_gpus(listing) if nvml() else []


def gpus_on_host() -> list[Gpu]:
    """List the GPUs of this host in the driver's order, including those that CUDA_VISIBLE_DEVICES leaves out.

    Under ROCm only the visible ones are known.
    """
    if visible_devices_variable() == "HIP_VISIBLE_DEVICES":
        return visible_gpus()
    return _nvml_gpus(None) if nvml() else []


def visible_devices_variable() -> str:
    """Name the environment variable that chooses the GPUs of a process."""
    return "HIP_VISIBLE_DEVICES" if torch_build().get("hip") else "CUDA_VISIBLE_DEVICES"


@cache
def torch_build() -> dict[str, Any]:
    """Read how the installed torch was built (`cuda`, `hip`, ...) without importing it; empty if absent."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return {}
    return runpy.run_path(str(Path(spec.origin).with_name("version.py")))


@cache
def nvml() -> ModuleType | None:
    """Start NVML once and return its bindings, or None where there is no NVIDIA driver."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml


def ask(query: Callable[..., Any], *arguments: Any) -> Any:
    """Return NVML's answer, or None if this GPU, driver or container does not support the query."""
    try:
        return query(*arguments)
    except pynvml.NVMLError:
        return None


def gpu_facts(gpu: Gpu) -> dict[str, Any]:
    """Return a GPU's fixed properties: JSON-able, None where the driver does not report one.

    Keys: index, name, memory_bytes, cuda_cores, nvlink_count, power_limit_w, max_sm_clock_mhz,
    max_memory_clock_mhz.
    """
    facts = dict.fromkeys(("cuda_cores", "nvlink_count", "power_limit_w", "max_sm_clock_mhz", "max_memory_clock_mhz"))
    if gpu.handle is not None:
        power_limit_mw = ask(pynvml.nvmlDeviceGetEnforcedPowerLimit, gpu.handle)
        facts = {
            "cuda_cores": ask(pynvml.nvmlDeviceGetNumGpuCores, gpu.handle),
            "nvlink_count": _nvlink_count(gpu.handle),
            "power_limit_w": None if power_limit_mw is None else power_limit_mw / 1000,
            "max_sm_clock_mhz": ask(pynvml.nvmlDeviceGetMaxClockInfo, gpu.handle, pynvml.NVML_CLOCK_SM),
            "max_memory_clock_mhz": ask(pynvml.nvmlDeviceGetMaxClockInfo, gpu.handle, pynvml.NVML_CLOCK_MEM),
        }
    return {"index": gpu.index, "name": gpu.name, "memory_bytes": gpu.memory_bytes} | facts


def describe_links(gpus: Sequence[Gpu]) -> str:
    """Describe the slowest link among several GPUs; "n/a" if it is unknown or there are fewer than two."""
    handles = [gpu.handle for gpu in gpus if gpu.handle is not None]
    if len(handles) < 2:
        return "n/a"
    fewest_nvlinks = min(_nvlink_count(handle) for handle in handles)
    if fewest_nvlinks > 0:
        return f"NVLink, {fewest_nvlinks} links a GPU"
    levels = [ask(pynvml.nvmlDeviceGetTopologyCommonAncestor, *pair) for pair in combinations(handles, 2)]
    # NVML's levels grow with the distance.
    return "n/a" if None in levels else f"no NVLink, {_PCIE_PATHS[max(levels)]}"


def _nvlink_count(handle: Any) -> int:
    links = range(pynvml.NVML_NVLINK_MAX_LINKS)
    return sum(ask(pynvml.nvmlDeviceGetNvLinkState, handle, link) == 1 for link in links)


def _nvml_gpus(listing: str | None) -> list[Gpu]:
    present = [ask(pynvml.nvmlDeviceGetHandleByIndex, index) for index in range(pynvml.nvmlDeviceGetCount())]
    chosen = present if listing is None else _chosen_handles(listing, present)
    return [_nvml_gpu(handle) for handle in chosen if handle is not None]


def _nvml_gpu(handle: Any) -> Gpu:
    memory = ask(pynvml.nvmlDeviceGetMemoryInfo, handle)
    return Gpu(
        id=pynvml.nvmlDeviceGetUUID(handle),
        index=ask(pynvml.nvmlDeviceGetIndex, handle),
        name=pynvml.nvmlDeviceGetName(handle),
        memory_bytes=None if memory is None else memory.total,
        handle=handle,
    )


def _chosen_handles(listing: str, present: list[Any]) -> list[Any]:
    """Read CUDA_VISIBLE_DEVICES as CUDA does: cut at the first unknown entry, nothing if an entry repeats."""
    entries = [entry.strip() for entry in listing.split(",")]
    if len(set(entries)) < len(entries):
        return []
    chosen = []
    for entry in entries:
        handle = _handle(entry, present)
        if handle is None:
            break
        chosen.append(handle)
    return chosen


def _handle(entry: str, present: list[Any]) -> Any:
    if entry.isdigit():
        return present[int(entry)] if int(entry) < len(present) else None
    if entry.startswith("GPU-"):  # CUDA accepts a prefix of a UUID if it is unambiguous
        known = [handle for handle in present if handle is not None]
        matches = [handle for handle in known if pynvml.nvmlDeviceGetUUID(handle).startswith(entry)]
        return matches[0] if len(matches) == 1 else None
    return ask(pynvml.nvmlDeviceGetHandleByUUID, entry)  # a MIG slice, which `present` does not list


@cache
def _rocm_gpus(listing: str | None) -> tuple[Gpu, ...]:
    answer = subprocess.run([sys.executable, "-c", _ROCM_QUERY], capture_output=True, encoding="utf-8", check=False)
    if answer.returncode != 0:
        return ()
    described = json.loads(answer.stdout.splitlines()[-1])
    ids = [str(index) for index in range(len(described))] if listing is None else listing.split(",")
    return tuple(
        Gpu(id=gpu_id.strip(), index=index, name=name, memory_bytes=memory_bytes)
        for index, (gpu_id, (name, memory_bytes)) in enumerate(zip(ids, described, strict=False))
    )
