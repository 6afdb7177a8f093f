"""What this machine can measure, what it lacks, and the command that fixes each lack."""

import importlib.util
import os
import pkgutil
import platform
import shutil
import sysconfig
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from glob import glob
from importlib.metadata import files, version
from pathlib import Path
from typing import Any

import psutil

from pipeline.instruments.machine.gpu_state import gpu_state, slowdown_reasons
from pipeline.instruments.machine.gpus import Gpu, describe_links, torch_build, visible_gpus
from pipeline.instruments.machine.identity import allowed, cpu_model, machine_facts, software_versions
from pipeline.instruments.profilers import nsys
from pipeline.peers import EXTRA, PEERS, version_of

# An environment that uv made has no pip.
_PIP = "pip" if importlib.util.find_spec("pip") else "uv pip"
_OTHER_TORCH = f"{_PIP} install --force-reinstall torch"
_PLUGIN = "snakemake_logger_plugin_cells"
# Where NVIDIA's packages install nsys. The copy inside Nsight Compute is never on PATH.
_NSYS_HOMES = (
    "/opt/nvidia/nsight-systems*/*/bin/nsys",
    "/usr/local/cuda*/bin/nsys",
    "/opt/nvidia/nsight-compute/*/host/target-linux-*/nsys",
)
# Debian's and Fedora's package of each library that nsys may lack.
_LIBRARY_PACKAGES = {"libdw.so.1": ("libdw1", "elfutils-libs"), "libelf.so.1": ("libelf1", "elfutils-libelf")}


@dataclass(frozen=True)
class Check:
    """Whether this machine can make one kind of measurement; `remedy` is a command, or "" if none would help."""

    name: str
    ok: bool
    detail: str
    remedy: str = ""


def report() -> str:
    """Write one screen: what can be measured, how to fix what cannot, and the facts of the machine."""
    checks = findings()
    lines = ["What this machine can measure"]
    for check in checks:
        lines.append(f"  {'ok' if check.ok else 'missing':9}{check.name:16}{check.detail}")
        if check.remedy:
            lines.append(f"{'':27}fix: {check.remedy}")
    if checks[0].ok:
        lines += ["", "This machine", *(f"  {name:25}{value}" for name, value in _facts())]
    return "\n".join(lines)


def findings() -> list[Check]:
    """Check each kind of measurement; if torch cannot be imported, that is the only finding."""
    try:
        import torch  # noqa: F401  every check below needs it
    except (ImportError, OSError) as error:
        return [Check("torch", False, str(error).splitlines()[0], f"{_PIP} install torch")]
    gpus = visible_gpus()
    return [
        Check("CPU timing", True, cpu_model()),
        _check_gpu_timing(gpus),
        _check_compile(gpus),
        _check_kernels(gpus),
        _check_nsys(gpus),
        _check_nccl(gpus),
        _check_all_reduce("gloo", f"on {_cores()} logical cores"),
        _check_snakemake(),
        _check_peers(gpus),
    ]


def _check_peers(gpus: list[Gpu]) -> Check:
    """Check that all peers are installed; without a GPU, which they need, the command is no fix."""
    installed_versions = {package: version_of(name) for name, package in PEERS.items()}
    listed = ", ".join(f"{package} {installed or 'not installed'}" for package, installed in installed_versions.items())
    if all(installed_versions.values()):
        return Check("peers", True, listed)
    command = f"{_PIP} install {EXTRA}"
    return (
        Check("peers", False, listed, command) if gpus else Check("peers", False, f"{listed} ({command}; needs a GPU)")
    )


def _check_gpu_timing(gpus: list[Gpu]) -> Check:
    import torch

    name = "GPU timing"
    if not gpus:
        return Check(name, False, "no GPU: runs at laptop scale")
    if not (torch_build().get("cuda") or torch_build().get("hip")):
        return Check(name, False, f"torch {torch.__version__} is built for the CPU only", _OTHER_TORCH)
    if not torch.cuda.is_available():
        return Check(name, False, "torch cannot use the GPU; its driver may be too old", "nvidia-smi")
    return Check(name, True, _by_model(gpus))


def _check_compile(gpus: list[Gpu]) -> Check:
    name = "torch.compile"
    if gpus:
        return _check_triton(name, gpus)
    return _check_compiler(name, "for the CPU, with the C++ compiler", "CXX", ("g++", "clang++"), ("g++", "gcc-c++"))


def _check_kernels(gpus: list[Gpu]) -> Check:
    import torch

    check = _check_triton("Triton kernels", gpus)
    if not (check.ok and torch.cuda.is_available()):
        return check
    from pipeline.attention.triton import gpu, kernel_sets, tile_tables  # these need Triton

    device = torch.device("cuda", 0)
    found = gpu.gpu_of(device)
    if found.why_refused:
        return replace(check, ok=False, detail=found.why_refused)
    why_not = kernel_sets.why_not_on(device)
    kernels = f"the plain kernels ({why_not})" if why_not else "Gluon's kernels where faster, else plain ones"
    budget = f"tiles for {tile_tables.tables_for(found).shared_bytes // gpu.KIB} KB"
    return replace(check, detail=f"{check.detail}; attention: {kernels}, {budget}")


def _check_triton(name: str, gpus: list[Gpu]) -> Check:
    if not gpus:
        return Check(name, False, "no GPU: Triton's interpreter runs the tests, but gives no times")
    version = software_versions()["triton"]
    if version == "absent":
        return Check(name, False, "Triton is not installed", f"{_PIP} install triton")
    # Triton compiles a launcher in C for each kernel.
    return _check_compiler(name, f"Triton {version}", "CC", ("gcc", "clang"), ("gcc", "gcc"))


def _check_compiler(
    name: str, detail: str, variable: str, compilers: tuple[str, ...], packages: tuple[str, str]
) -> Check:
    """Check for a compiler, which an environment variable may name, and Python's headers."""
    candidates = (os.environ[variable],) if variable in os.environ else compilers
    if not any(map(shutil.which, candidates)):
        return Check(name, False, f"no compiler found: {' or '.join(candidates)}", _install_command(*packages))
    if not Path(sysconfig.get_path("include", "posix_prefix"), "Python.h").exists():
        python = f"python{'.'.join(platform.python_version_tuple()[:2])}"
        return Check(name, False, "no Python.h for the compiler", _install_command(f"{python}-dev", f"{python}-devel"))
    return Check(name, True, detail)


def _install_command(debian_package: str, fedora_package: str) -> str:
    return f"dnf install {fedora_package}" if shutil.which("dnf") else f"apt-get install {debian_package}"


def _check_nsys(gpus: list[Gpu]) -> Check:
    name = "nsys captures"
    if not gpus:
        return Check(name, False, "no GPU: torch.profiler is used instead")
    command = shutil.which("nsys")
    if command is None:
        return _nsys_off_path(name)
    try:
        return Check(name, True, nsys.check())
    except nsys.CaptureFailed as failed:
        return Check(name, False, str(failed), _libraries_for(Path(command)))


def _libraries_for(nsys_command: Path) -> str:
    missing = nsys.libraries_lacking_to_import(nsys_command)
    packages = [_LIBRARY_PACKAGES.get(library, (library, library)) for library in missing]
    columns = [" ".join(dict.fromkeys(column)) for column in zip(*packages, strict=True)]
    return _install_command(*columns) if columns else ""


def _nsys_off_path(name: str) -> Check:
    commands = sorted(path for pattern in _NSYS_HOMES for path in glob(pattern))
    if commands:
        return Check(name, False, "nsys is not on PATH", f'export PATH="{Path(commands[-1]).parent}:$PATH"')
    remedy = _install_command("nsight-systems-cli", "nsight-systems-cli")
    return Check(name, False, "nsys not found; NVIDIA's package repository has it", remedy)


def _check_nccl(gpus: list[Gpu]) -> Check:
    if len(gpus) < 2:
        return Check("NCCL all-reduce", False, f"needs 2 GPUs, {len(gpus)} present")
    return _check_all_reduce("NCCL", f"on {len(gpus)} GPUs; {describe_links(gpus)}")


def _check_all_reduce(backend: str, where: str) -> Check:
    from torch import distributed

    if distributed.is_available() and getattr(distributed, f"is_{backend.lower()}_available")():
        return Check(f"{backend} all-reduce", True, where)
    return Check(f"{backend} all-reduce", False, f"torch is built without {backend}", _OTHER_TORCH)


def _check_snakemake() -> Check:
    """Check that `snakemake` is this environment's own and finds this project's logger plugin."""
    name, on_path, own_script = "snakemake", shutil.which("snakemake"), _snakemake_script()
    reinstall = f"{_PIP} install --force-reinstall --no-deps snakemake"
    if not any(module.name == _PLUGIN for module in pkgutil.iter_modules()):
        return Check(name, False, f"{_PLUGIN}, part of this project, is not installed", f"{_PIP} install -e .")
    if own_script is None or not own_script.exists():
        return Check(name, False, "this environment has no such command; `python -m snakemake` works", reinstall)
    if "snakemake.cli" not in own_script.read_text(encoding="utf-8", errors="replace"):
        return Check(name, False, f"{own_script} is not Snakemake's own; `python -m snakemake` works", reinstall)
    if on_path is None or not own_script.samefile(on_path):
        detail = f"{on_path} belongs to another environment" if on_path else "not on PATH"
        return Check(name, False, f"{detail}; `python -m snakemake` works", f'export PATH="{own_script.parent}:$PATH"')
    return Check(name, True, f"Snakemake's own command, {version(name)}: {on_path}")


def _snakemake_script() -> Path | None:
    """Return the path at which Snakemake was installed in this environment, even if the file is gone."""
    installed = next((file for file in files("snakemake") or () if file.match("bin/snakemake")), None)
    return Path(installed.locate()).resolve() if installed else None


def _facts() -> Iterator[tuple[str, str]]:
    facts, gpus, memory = machine_facts(), visible_gpus(), psutil.virtual_memory()
    cpu, software = facts["cpu"], facts["software"]
    cores = f"{cpu['logical_cores']} logical cores on {cpu['physical_cores']} physical, {_cores()} usable"
    yield "CPU", f"{cpu['model']}, {cores}"
    limit_bytes = allowed()["memory_limit_bytes"]
    yield (
        "memory",
        f"{_gib(memory.available)} free of {_gib(memory.total)}"
        + (f", {_gib(limit_bytes)} usable" if limit_bytes else ""),
    )
    yield "disk", f"{_gib(psutil.disk_usage('.').free)} free here"
    yield "GPUs", _by_model(gpus) or "none"
    if gpus:
        yield "GPU links", describe_links(gpus)
        yield from _state_facts(gpu_state())
    yield "operating system", facts["os"]
    for name in ("driver", "cuda", "nccl", "cudnn", "torch", "triton", "python"):
        yield name, software[name]


def _cores() -> str:
    """Say how many cores measurements may use."""
    found = allowed()
    quota = found["cpu_quota"]
    return str(found["cores"]) if quota is None else f"{quota:g} of {found['cores']}"


def _state_facts(state: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """Summarise all GPUs in the same few lines, however many there are."""
    if not state:
        yield "GPU state", "n/a"
        return
    yield "GPU memory free", _span(state, "memory_free_bytes", "GiB", unit_size=2**30)
    yield "GPU SM clock", _span(state, "sm_clock_mhz", "MHz")
    yield "GPU memory clock", _span(state, "memory_clock_mhz", "MHz")
    yield "GPU temperature", _span(state, "temperature_c", "°C")
    yield "GPU power", _span(state, "power_w", "W")
    reasons = sorted({reason for gpu in state for reason in gpu["throttle_reasons"] or ()})
    verdict = f"; do not trust times measured now: {', '.join(slow)}" if (slow := slowdown_reasons(state)) else ""
    yield "GPU clocks limited by", (", ".join(reasons) or "nothing") + verdict


def _span(state: list[dict[str, Any]], key: str, unit: str, unit_size: int = 1) -> str:
    values = sorted(round(gpu[key] / unit_size) for gpu in state if gpu[key] is not None)
    if not values:
        return "n/a"
    low, high = values[0], values[-1]
    return f"{low} {unit}" if low == high else f"{low} to {high} {unit}"


def _by_model(gpus: list[Gpu]) -> str:
    models = Counter((gpu.name, gpu.memory_bytes) for gpu in gpus)
    return ", ".join(f"{count} x {name} of {_gib(size)}" for (name, size), count in models.items())


def _gib(size_bytes: int | None) -> str:
    return "unknown size" if size_bytes is None else f"{size_bytes / 2**30:.0f} GiB"
