import sys
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest
import torch

from pipeline import cli, doctor
from pipeline.attention.triton import gpu, kernel_sets
from pipeline.instruments.machine.gpus import Gpu
from tools.tuning.every_gpu import GPUS

H200 = [Gpu(id=f"GPU-{index}", index=index, name="NVIDIA H200", memory_bytes=140 * 2**30) for index in range(8)]


@pytest.fixture
def path(tmp_path, monkeypatch):
    """Set PATH to an empty folder, and return a function that puts programs there."""
    folder = tmp_path / "root" / "bin"
    folder.mkdir(parents=True)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(doctor, "_NSYS_HOMES", ())

    def put(name, prints="", folder=folder):
        program = Path(folder, name)
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(f"#!/bin/sh\n/bin/cat <<'END'\n{prints}\nEND\n")
        program.chmod(0o755)
        return program

    return put


@pytest.fixture
def gpu_host(monkeypatch):
    monkeypatch.setattr(doctor, "visible_gpus", lambda: H200)
    monkeypatch.setattr(doctor, "torch_build", lambda: {"cuda": "13.0"})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)


@pytest.fixture
def laptop(monkeypatch):
    monkeypatch.setattr(doctor, "visible_gpus", list)


def check(name):
    return next(check for check in doctor.findings() if check.name == name)


def test_without_a_gpu_no_gpu_finding_needs_a_fix(laptop, capsys):
    elsewhere = {"torch.compile", "snakemake"}
    lacking = {check.name: check for check in doctor.findings() if not check.ok and check.name not in elsewhere}
    assert lacking.keys() >= {"GPU timing", "Triton kernels", "nsys captures", "NCCL all-reduce"}
    assert {check.remedy for check in lacking.values()} == {""}
    assert lacking["GPU timing"].detail == "no GPU: runs at laptop scale"
    assert check("CPU timing").ok
    assert cli.run(["doctor"], "ordinary", 0.0) == 0
    assert capsys.readouterr().out.startswith("What this machine can measure\n")


def test_the_worst_gpu_report_fits_one_screen_and_has_a_remedy_for_every_lack(gpu_host, path, monkeypatch):
    known = {"sm_clock_mhz": 1980, "memory_clock_mhz": 3201, "power_w": 700.4, "memory_free_bytes": 9 * 2**30}
    hot = known | {"temperature_c": 90, "throttle_reasons": ["hw_thermal_slowdown", "sw_power_cap"]}
    cooler = known | {"sm_clock_mhz": 345, "temperature_c": None, "throttle_reasons": None}
    monkeypatch.setattr(doctor, "gpu_state", lambda: [hot, cooler])
    screen = doctor.report()
    assert len(screen.splitlines()) <= 40
    throttled = "hw_thermal_slowdown, sw_power_cap; do not trust times measured now: hw_thermal_slowdown\n"
    for words in ("345 to 1980 MHz", " 90 °C", " 9 GiB\n", throttled, "8 x NVIDIA H200 of 140 GiB"):
        assert words in screen
    lacking = [check for check in doctor.findings() if not check.ok]
    assert {check.name for check in lacking} >= {"torch.compile", "Triton kernels", "nsys captures"}
    assert all(check.remedy for check in lacking)


def test_a_broken_torch_is_the_only_finding(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    (finding,) = doctor.findings()
    assert (finding.name, finding.ok, finding.remedy) == ("torch", False, f"{doctor._PIP} install torch")
    assert f"fix: {finding.remedy}" in doctor.report()


def test_compiling_for_the_cpu_needs_the_cpp_compiler_and_python_headers(laptop, path, monkeypatch, tmp_path):
    assert check("torch.compile").remedy == "apt-get install g++"
    path("dnf")
    assert check("torch.compile").remedy == "dnf install gcc-c++"
    path("clang++")
    assert check("torch.compile").ok
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "no-such-compiler" in check("torch.compile").detail
    monkeypatch.delenv("CXX")
    monkeypatch.setattr(doctor.sysconfig, "get_path", lambda *_scheme: str(tmp_path))
    assert (check("torch.compile").ok, "Python.h" in check("torch.compile").detail) == (False, True)


V100 = replace(GPUS["sm_80"], name="Tesla V100", capability=(7, 0))


@pytest.mark.parametrize(
    ("found", "detail_text"),
    [
        (GPUS["sm_90"], "Gluon's kernels where faster, else plain ones, tiles for 227 KB"),
        (GPUS["sm_86"], "the plain kernels (no Hopper GPU), tiles for 99 KB"),
        (GPUS["gfx942"], "the plain kernels (no Hopper GPU), tiles for 64 KB"),
        (V100, None),
    ],
)
def test_it_says_which_attention_kernels_the_gpu_gets(found, detail_text, gpu_host, path, monkeypatch):
    assert check("Triton kernels").remedy == "apt-get install gcc"
    path("gcc")
    monkeypatch.setattr(kernel_sets, "is_interpreted", lambda: False)
    for module in (gpu, kernel_sets):
        monkeypatch.setattr(module, "gpu_of", lambda device: found if device.type == "cuda" else None)
    detail = V100.why_refused if detail_text is None else f"Triton {version('triton')}; attention: {detail_text}"
    assert (check("Triton kernels").ok, check("Triton kernels").detail) == (detail_text is not None, detail)


CAPTURING_NSYS = """#!/bin/sh
case "$1" in --version) echo "NVIDIA Nsight Systems version 2025.3" ;; esac
for word; do case "$word" in --output=*) : > "${word#--output=}.nsys-rep" ;; esac; done
"""


def test_nsys_is_found_off_the_path_must_capture_and_missing_libraries_are_named(gpu_host, path, monkeypatch, tmp_path):
    nsys = path("nsys", folder=tmp_path / "opt" / "2025.3" / "bin")
    monkeypatch.setattr(doctor, "_NSYS_HOMES", (str(tmp_path / "opt" / "*" / "bin" / "nsys"),))
    assert check("nsys captures").remedy == f'export PATH="{nsys.parent}:$PATH"'
    path("nsys").write_text(CAPTURING_NSYS)
    assert check("nsys captures") == doctor.Check("nsys captures", True, "NVIDIA Nsight Systems version 2025.3")
    path("nsys", prints="Importer error status: An unknown error occurred.")
    detail = "nsys left no report: Importer error status: An unknown error occurred."
    assert check("nsys captures") == doctor.Check("nsys captures", False, detail)
    path("ldd", prints="\tlibdw.so.1 => not found\n\tlibm.so.6 => /lib/libm.so.6 (0x7f)\n\tlibelf.so.1 => not found")
    path("QdstrmImporter", folder=tmp_path / "root" / "host-linux-x64")
    captures = check("nsys captures")
    assert "libdw.so.1, libelf.so.1" in captures.detail
    assert (captures.ok, captures.remedy) == (False, "apt-get install libdw1 libelf1")


def test_a_cpu_build_of_torch_and_a_single_gpu_are_reported(gpu_host, monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True, raising=False)
    assert check("NCCL all-reduce").detail.startswith("on 8 GPUs")
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: False)
    assert check("NCCL all-reduce").detail == "torch is built without NCCL"
    monkeypatch.setattr(doctor, "visible_gpus", lambda: H200[:1])
    assert check("NCCL all-reduce").detail == "needs 2 GPUs, 1 present"
    monkeypatch.setattr(doctor, "torch_build", lambda: {"cuda": None, "hip": None})
    assert check("GPU timing").remedy == f"{doctor._PIP} install --force-reinstall torch"


def test_snakemakes_own_command_is_named_and_any_other_state_has_a_remedy(path, monkeypatch, tmp_path):
    environment, other = path("snakemake"), path("snakemake", folder=tmp_path / "other")
    for script in (environment, other):
        script.write_text("from snakemake.cli import main\n")
    monkeypatch.setattr(doctor, "_snakemake_script", lambda: environment)
    detail = f"Snakemake's own command, {version('snakemake')}: {environment}"
    assert check("snakemake") == doctor.Check("snakemake", True, detail)
    with monkeypatch.context() as patch:
        patch.setattr(doctor, "_snakemake_script", lambda: other)
        assert check("snakemake").detail.startswith(f"{environment} belongs to another environment")
        assert check("snakemake").remedy == f'export PATH="{other.parent}:$PATH"'
        environment.unlink()
        assert check("snakemake").detail.startswith("not on PATH")
    assert check("snakemake").remedy.endswith("pip install --force-reinstall --no-deps snakemake")
    environment.write_text("from pipeline.launcher import main\n")
    assert check("snakemake").detail == f"{environment} is not Snakemake's own; `python -m snakemake` works"
    monkeypatch.setattr(doctor.pkgutil, "iter_modules", lambda: iter(()))
    assert check("snakemake").remedy.endswith("pip install -e .")


def test_container_limits_are_reported(monkeypatch):
    found = {"cores": 2, "cpu_quota": 0.5, "memory_limit_bytes": 2 * 2**30}
    monkeypatch.setattr(doctor, "allowed", lambda: found)
    facts = dict(doctor._facts())
    assert "0.5 of 2" in facts["CPU"]
    assert "2 GiB usable" in facts["memory"]
