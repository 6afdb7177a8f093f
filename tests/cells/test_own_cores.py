import os

import pytest

from pipeline.cells import own_cores
from pipeline.instruments.machine.gpus import Gpu


@pytest.mark.parametrize(("count", "cores"), [(1, 16), (2, 16), (4, 30), (8, 128)])
def test_shares_of_cores_are_equal_and_disjoint(count, cores):
    shares = [own_cores.cores_of_gpus([index], count, range(cores)) for index in range(count)]
    assert {len(share) for share in shares} == {cores // count}
    assert len({core for share in shares for core in share}) == count * (cores // count)
    assert own_cores.cores_of_gpus([count - 1, 0], count, range(cores)) == sorted({*shares[0], *shares[-1]})


def test_threads_of_one_physical_core_are_adjacent(tmp_path):
    for core in range(8):
        place = tmp_path / f"cpu{core}/topology"
        place.mkdir(parents=True)
        (place / "thread_siblings_list").write_text(f"{core % 4},{core % 4 + 4}\n")
    assert own_cores.sort_by_physical_core(range(8), tmp_path) == [0, 4, 1, 5, 2, 6, 3, 7]
    assert own_cores.sort_by_physical_core([5, 2, 1], tmp_path / "hidden") == [1, 2, 5]


@pytest.mark.parametrize(
    ("indices", "cores", "expected"),
    [([0, 1], 8, True), ([0, 1], 7, False), ([0], 64, False), ([], 64, False), ([None, None], 64, False)],
)
def test_gpus_have_own_cores_if_there_are_several_with_four_cores_each(monkeypatch, indices, cores, expected):
    gpus = [Gpu(id=str(number), index=index, name="H100", memory_bytes=None) for number, index in enumerate(indices)]
    monkeypatch.setattr(own_cores, "gpus_on_host", lambda: gpus)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(cores)))
    assert own_cores.each_gpu_has_own_cores() == expected
