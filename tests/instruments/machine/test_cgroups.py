import psutil
import pytest

from pipeline.instruments.machine.cgroups import memory_limit_bytes

TOTAL = psutil.virtual_memory().total


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
def test_the_tightest_memory_limit_around_this_process_applies(write, own, files, expected):
    write(own, files)
    assert memory_limit_bytes() == expected
