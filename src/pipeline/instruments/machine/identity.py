"""Identify the machine and the software that a measurement ran on.

The workflow calls `machine_kind`, `gpu_count` and `software_versions` whenever it is parsed, so none of them imports
torch, which takes seconds. While GPUs are claimed, all of them see only the claimed ones.
"""

import contextlib
import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

from pipeline.instruments.machine.cgroups import cpu_limit, memory_limit_bytes
from pipeline.instruments.machine.gpus import ask, gpu_facts, nvml, torch_build, visible_gpus

# The software that affects measured values, by the names of `software_versions`.
SOFTWARE = ("python", "torch", "triton", "cuda", "driver")


def machine_kind() -> str:
    """Name the kind of machine: the visible GPUs' model, or the CPU's where there is no GPU."""
    models = sorted({gpu.name for gpu in visible_gpus()})
    return " + ".join(models) if models else cpu_model()


def gpu_count() -> int:
    """Count the GPUs that this process may use."""
    return len(visible_gpus())


def cpu_model() -> str:
    """Name the CPU's model."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def software_versions() -> dict[str, str]:
    """Return the versions of what affects measured values: python, torch, triton, cuda (ROCm: HIP) and driver."""
    build, library = torch_build(), nvml()
    return {
        "python": platform.python_version(),
        "torch": _installed_version("torch"),
        # ROCm's wheels ship Triton under other names.
        "triton": _installed_version("triton", "triton-rocm", "pytorch-triton-rocm"),
        "cuda": build.get("cuda") or build.get("hip") or "none",
        "driver": (ask(library.nvmlSystemGetDriverVersion) if library else None) or "none",
    }


def allowed() -> dict[str, Any]:
    """Return what this process may use of the host: cores, cpu_quota and memory_limit_bytes.

    cpu_quota is in cores, None if no cgroup allows fewer than `cores`; memory_limit_bytes is None if it is no less than
    the host's memory.
    """
    cores, memory_bytes = len(os.sched_getaffinity(0)), memory_limit_bytes()
    limit = None
    with contextlib.suppress(OSError):  # no cgroups here
        limit = cpu_limit(cores)
    return {
        "cores": cores,
        "cpu_quota": limit.cores if limit else None,
        "memory_limit_bytes": memory_bytes if memory_bytes < psutil.virtual_memory().total else None,
    }


def machine_facts() -> dict[str, Any]:
    """Describe the machine for a record: JSON-able, with nothing that identifies its owner.

    Keys: kind, cpu {model, logical_cores, physical_cores}, memory_bytes, os, software {name: version}, and gpus, one
    entry each as returned by `gpu_facts`. Imports torch, but does not start CUDA.
    """
    facts = machine_without_torch()
    return {**facts, "software": facts["software"] | _library_versions()}


def machine_without_torch() -> dict[str, Any]:
    """Describe the machine as `machine_facts` does, without the library versions, some of which need torch."""
    return {
        "kind": machine_kind(),
        "cpu": {
            "model": cpu_model(),
            "logical_cores": psutil.cpu_count(),
            "physical_cores": psutil.cpu_count(logical=False),
        },
        "memory_bytes": psutil.virtual_memory().total,
        "os": f"{_distribution()}, {platform.system()} {platform.release()}",
        "software": software_versions(),
        "gpus": [gpu_facts(gpu) for gpu in visible_gpus()],
    }


def git_commit(path: Path) -> str:
    """Return the commit of the checkout that contains `path`, with "+dirty" if tracked files in its folder differ.

    "unknown" if `path` is not a tracked part of a checkout: a package installed in some project's `.venv` is not at
    that project's commit.
    """
    folder = path if path.is_dir() else path.parent
    commit = _git(folder, "rev-parse", "--short", "HEAD")
    if not commit or not _git(folder, "ls-files", "."):
        return "unknown"
    return commit + ("+dirty" if _git(folder, "status", "--porcelain", "--untracked-files=no", ".") else "")


def _git(folder: Path, *arguments: str) -> str:
    try:
        command = ["git", "-C", str(folder), *arguments]
        return subprocess.run(command, capture_output=True, encoding="utf-8", check=True).stdout.strip()
    except (FileNotFoundError, subprocess.CalledProcessError):
        return ""


def _installed_version(*distributions: str) -> str:
    for distribution in distributions:
        try:
            return version(distribution)
        except PackageNotFoundError:
            continue
    return "absent"


def _library_versions() -> dict[str, str]:
    import torch
    import torch.distributed

    from pipeline.compat.torch_private import cudnn_version

    cudnn = cudnn_version()
    has_nccl = torch.distributed.is_available() and torch.distributed.is_nccl_available()
    return {
        "cudnn": "absent" if cudnn is None else str(cudnn),
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if has_nccl else "absent",
        "snakemake": _installed_version("snakemake"),
        "numpy": _installed_version("numpy"),
        "pandas": _installed_version("pandas"),
    }


def _distribution() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return "unknown distribution"
