import psutil
import pytest

from pipeline.instruments.machine import cgroups
from pipeline.instruments.machine.memory_limit import memory_limit_bytes

TOTAL = psutil.virtual_memory().total


@pytest.fixture
def limit(monkeypatch, tmp_path):
    """Return a function that writes a file of the machine's cgroups."""
    monkeypatch.setattr(cgroups, "CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(cgroups, "OWN_CGROUPS", tmp_path / "own")

    def write(own, files):
        if own is not None:
            (tmp_path / "own").write_text(own)
        for name, content in files.items():
            (tmp_path / "cgroup" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "cgroup" / name).write_text(f"{content}\n")

    return write


@pytest.mark.parametrize(
    ("own", "files", "expected"),
    [
        ("0::/job/step\n", {"job/step/memory.max": "max", "job/memory.max": 10**9}, 10**9),
        ("0::/job/step\n", {"job/step/memory.max": 10**8, "job/memory.max": 10**9}, 10**8),
        ("0::/\n", {"memory.max": 10**9}, 10**9),  # in a container
        ("0::/job\n", {"job/memory.max": "max"}, TOTAL),
        ("0::/job\n", {"other/memory.max": 10**9}, TOTAL),
        ("3:cpu:/a\n4:memory:/job\n0::/\n", {"memory/job/memory.limit_in_bytes": 10**9}, 10**9),
        ("4:memory:/docker/1\n", {"memory/memory.limit_in_bytes": 10**9}, 10**9),  # in a container
        ("4:memory:/job\n", {"memory/job/memory.limit_in_bytes": 2**63 - 4096}, TOTAL),
        ("", {}, TOTAL),
        (None, {}, TOTAL),  # no cgroups
    ],
)
def test_the_tightest_limit_around_this_process_holds(limit, own, files, expected):
    limit(own, files)
    assert memory_limit_bytes() == expected
