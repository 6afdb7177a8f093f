import json
import os
import platform
import subprocess
import sys
from types import SimpleNamespace

import pynvml
import pytest
import torch

from pipeline.instruments.machine import gpus, identity
from pipeline.instruments.machine.gpu_state import gpu_state, slowdown_reasons

from .nvml import H200, FakeGpu, FakeNvml


@pytest.fixture
def install(monkeypatch):
    """Return a function that installs fake GPUs, seen through NVML, with CUDA_VISIBLE_DEVICES unset."""
    gpus.nvml.cache_clear()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(gpus, "torch_build", lambda: {"cuda": "13.0"})

    def install_gpus(*fakes):
        for module in ("gpus", "gpu_state"):
            monkeypatch.setattr(f"pipeline.instruments.machine.{module}.pynvml", FakeNvml(fakes))

    yield install_gpus
    gpus.nvml.cache_clear()


@pytest.mark.parametrize(
    ("listing", "names"),
    [
        (None, ["a", "b", "c"]),
        ("", []),
        ("2,0", ["c", "a"]),
        ("GPU-111-abc", ["b"]),
        ("GPU-1,GPU-2", ["b", "c"]),
        ("GPU-", []),
        ("0,7,1", ["a"]),
        ("-1", []),
        ("1,1", []),
    ],
)
def test_visible_gpus_are_those_that_cuda_would_show(install, monkeypatch, listing, names):
    install(FakeGpu(0, "a"), FakeGpu(1, "b"), FakeGpu(2, "c"))
    if listing is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", listing)
    assert [gpu.name for gpu in gpus.visible_gpus()] == names
    assert identity.gpu_count() == len(names)


def test_nvml_is_not_started_if_all_gpus_are_hidden(monkeypatch):
    """The process may be a CPU rank, forked from one that has started NVML."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(gpus, "torch_build", lambda: {"cuda": "13.0"})
    monkeypatch.setattr(gpus, "nvml", lambda: pytest.fail("NVML was asked"))
    assert gpu_state() == []


def test_the_machine_kind_is_the_sorted_models_of_visible_gpus_or_the_cpu_model(install, monkeypatch):
    install(FakeGpu(0, "NVIDIA L4"), FakeGpu(1, H200), FakeGpu(2, H200))
    kinds = {"1,0": f"{H200} + NVIDIA L4", "0,1": f"{H200} + NVIDIA L4", "1,2": H200, "": identity.cpu_model()}
    for visible, kind in kinds.items():
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert identity.machine_kind() == kind


def test_without_a_driver_there_is_no_gpu_and_no_state(install, monkeypatch):
    def no_driver():
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", no_driver)
    assert identity.gpu_count() == 0
    assert identity.machine_kind() == identity.cpu_model() != ""
    assert identity.software_versions()["driver"] == "none"
    assert gpu_state() == []


def test_rocm_gpus_are_listed_without_starting_hip_in_this_process(install, monkeypatch):
    monkeypatch.setattr(gpus, "torch_build", lambda: {"hip": "6.4"})
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "3,1")
    described = json.dumps([["AMD Instinct MI300X", 2**36]] * 2)
    monkeypatch.setattr(gpus, "_ROCM_QUERY", f"print('a warning')\nprint({described!r})")
    found = gpus.visible_gpus()
    assert [(gpu.id, gpu.name, gpu.memory_bytes) for gpu in found] == [(n, "AMD Instinct MI300X", 2**36) for n in "31"]
    assert gpus.visible_devices_variable() == "HIP_VISIBLE_DEVICES"
    assert gpus.gpu_facts(found[0])["power_limit_w"] is None
    assert gpu_state() == []


def test_functions_called_at_every_workflow_parse_do_not_import_torch():
    code = (
        "import sys; from pipeline.instruments.machine import gpu_state, identity, peaks;"
        "identity.machine_kind(), identity.gpu_count(), identity.software_versions(), gpu_state.gpu_state();"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_versions_match_those_that_torch_reports():
    versions = identity.software_versions()
    assert versions["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert versions["cuda"] == (torch.version.cuda or torch.version.hip or "none")
    assert versions["python"] == platform.python_version()


def test_facts_are_json_and_do_not_name_the_host(install):
    memory = SimpleNamespace(total=150 * 2**30, free=1)
    install(FakeGpu(0, answers={"nvmlDeviceGetMemoryInfo": memory, "nvmlDeviceGetEnforcedPowerLimit": 700_000}))
    facts = identity.machine_facts()
    told = {"index": 0, "name": H200, "memory_bytes": 150 * 2**30, "power_limit_w": 700.0, "max_sm_clock_mhz": None}
    assert told.items() <= facts["gpus"][0].items()
    assert facts["memory_bytes"] > 0
    assert {"cudnn", "nccl", "snakemake", "numpy", "pandas", "torch"} <= facts["software"].keys()
    assert platform.node() not in json.dumps(facts)
    assert "GPU-000" not in json.dumps(facts)


def test_allowed_gives_the_cores_cpu_quota_and_memory_limit(monkeypatch, write):
    monkeypatch.setattr(identity.os, "sched_getaffinity", lambda _pid: {0, 3})
    assert identity.allowed() == {"cores": 2, "cpu_quota": None, "memory_limit_bytes": None}
    write("0::/\n", {"cpu.max": "50000 100000", "memory.max": 2**20})
    assert identity.allowed() == {"cores": 2, "cpu_quota": 0.5, "memory_limit_bytes": 2**20}


def test_gpu_state_values_have_the_units_in_their_names(install):
    answers = {
        "nvmlDeviceGetClockInfo": {pynvml.NVML_CLOCK_SM: 1980, pynvml.NVML_CLOCK_MEM: 3201}.get,
        "nvmlDeviceGetTemperature": lambda _sensor: 41,
        "nvmlDeviceGetPowerUsage": 123_456,
        "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=97, memory=3),
        "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=9, free=4),
        "nvmlDeviceGetCurrentClocksEventReasons": 0,
    }
    install(FakeGpu(0, answers=answers))
    told = {"index": 0, "sm_clock_mhz": 1980, "memory_clock_mhz": 3201, "temperature_c": 41, "power_w": 123.456}
    assert gpu_state() == [told | {"utilization_percent": 97, "memory_free_bytes": 4, "throttle_reasons": []}]


@pytest.mark.parametrize("query", ["CurrentClocksEventReasons", "CurrentClocksThrottleReasons"])
@pytest.mark.parametrize(
    ("bits", "throttled", "slowed"),
    [
        (0x1 | 0x4 | 0x400, ["gpu_idle", "sw_power_cap", "0x400"], []),
        (0x8 | 0x80, ["hw_slowdown", "hw_power_brake"], ["hw_slowdown", "hw_power_brake"]),
        (0x20, ["sw_thermal_slowdown"], ["sw_thermal_slowdown"]),
        (0x40 | 0x2, ["applications_clocks", "hw_thermal_slowdown"], ["hw_thermal_slowdown"]),
    ],
)
def test_only_heat_and_failing_power_are_slowdowns_and_unsupported_values_are_none(
    install, query, bits, throttled, slowed
):
    install(FakeGpu(0), FakeGpu(1, answers={f"nvmlDeviceGet{query}": bits}))
    untold, state = gpu_state()
    assert untold == dict.fromkeys(state) | {"index": 0}
    assert state["throttle_reasons"] == throttled
    assert slowdown_reasons([untold, state]) == slowed


def test_links_are_described_by_the_slowest(install):
    install(*(FakeGpu(n, answers={"nvmlDeviceGetNvLinkState": lambda link, n=n: int(link < 6 - n)}) for n in (0, 1)))
    assert gpus.describe_links(gpus.visible_gpus()) == "NVLink, 5 links a GPU"
    far = {"nvmlDeviceGetTopologyCommonAncestor": lambda other: 50 if other.index == 2 else 10}
    install(FakeGpu(0, answers=far), FakeGpu(1, answers=far), FakeGpu(2))
    assert gpus.describe_links(gpus.visible_gpus()) == "no NVLink, across NUMA nodes"
    install(FakeGpu(0))
    assert gpus.describe_links(gpus.visible_gpus()) == "n/a"


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    (tmp_path / "package").mkdir()
    for name in ("package/module.py", "page.md"):
        (tmp_path / name).write_text("one")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "package", "page.md")
    git(tmp_path, "-c", "user.name=n", "-c", "user.email=e", "commit", "-qm", "first")
    return tmp_path


def git(folder, *arguments):
    return subprocess.run(["git", "-C", folder, *arguments], check=True, capture_output=True, text=True).stdout.strip()


def test_the_commit_is_dirty_only_if_tracked_files_of_the_package_differ(checkout):
    package, commit = checkout / "package", git(checkout, "rev-parse", "--short", "HEAD")
    for other in (package / "untracked", checkout / "page.md"):
        other.write_text("two")
    assert identity.git_commit(package) == commit
    (package / "module.py").write_text("two")
    assert identity.git_commit(package / "module.py") == commit + "+dirty"


def test_the_commit_is_unknown_without_git_or_tracked_files(checkout, tmp_path_factory, monkeypatch):
    installed = checkout / ".venv" / "package"
    installed.mkdir(parents=True)
    assert identity.git_commit(installed) == "unknown"
    assert identity.git_commit(tmp_path_factory.mktemp("elsewhere")) == "unknown"
    monkeypatch.setenv("PATH", "")
    assert identity.git_commit(checkout / "package") == "unknown"


@pytest.mark.gpu
def test_nothing_before_a_cell_claims_its_gpus_starts_cuda():
    program = """
import importlib, torch
from pipeline.instruments.machine.identity import machine_facts
from pipeline.registry import NAMES
machine_facts()
for stage in NAMES:
    importlib.import_module(f"pipeline.stages.{stage}.measure")
print(torch.cuda.is_initialized())
"""
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "False"
