import os
import threading
from contextlib import ExitStack, contextmanager, suppress
from unittest.mock import Mock

import pytest
import torch

from pipeline.instruments.machine import pinning
from pipeline.instruments.machine.gpus import Gpu
from pipeline.instruments.machine.pinning import core_for, divide_cores, in_order_of_use, near_cores, pinned

CUDA = torch.device("cuda")


@pytest.mark.parametrize(
    ("cores", "near", "ranks", "divided"),
    [
        ([3, 1, 2], [], 2, [3, 1]),  # in order of use
        ([1], [], 2, [None, None]),  # fewer cores than ranks
        ([1, 2, 3, 4, 0], [{3, 4}, {0, 1, 2}], 2, [3, 1]),  # near their GPUs
        ([1, 2, 3], [{3}, {3}, {3}], 3, [3, 1, 2]),  # the near ones are used up
    ],
)
def test_each_rank_gets_its_own_core_near_its_gpu_in_order_of_use(cores, near, ranks, divided):
    assert divide_cores(cores, near, ranks) == divided


def test_cores_are_sorted_with_first_threads_and_high_numbers_first(tmp_path):
    for core in range(6):
        folder = tmp_path / f"cpu{core}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{core % 3},{core % 3 + 3}\n")
    assert in_order_of_use({0, 1, 2, 3, 4, 5}, tmp_path) == [2, 1, 0, 5, 4, 3]
    assert in_order_of_use({1, 4, 5}, tmp_path) == [5, 1, 4]
    assert in_order_of_use({0, 3, 2}, tmp_path / "hidden") == [3, 2, 0]


def test_near_cores_are_read_from_the_bit_masks_of_the_driver(monkeypatch):
    monkeypatch.setattr(pinning, "ask", lambda _query, handle, _words: [0b1010, 0b1] if handle == "known" else None)
    assert near_cores(Gpu("GPU-1", 0, "a GPU", None, "known")) == {1, 3, 64}
    assert near_cores(Gpu("GPU-2", 1, "a GPU", None, "asks in vain")) == set()
    assert near_cores(Gpu("0", 0, "AMD's", None)) == set()


def test_only_cores_that_the_process_may_use_are_chosen(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _thread: {5, 6, 9})
    monkeypatch.setattr(pinning, "near_cores", lambda _gpu: {0, 1, 9})
    monkeypatch.setattr(pinning, "visible_gpus", lambda: ["a GPU"])
    assert core_for(0, 1) == 9


@contextmanager
def waiting_thread():
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    yield thread.native_id
    end.set()
    thread.join()


@pytest.fixture
def autograd_thread(monkeypatch):
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two cores")
    with waiting_thread() as thread:
        monkeypatch.setattr(pinning, "_autograd_thread", lambda _device: thread)
        yield thread


def test_inside_both_threads_share_a_core_and_torch_computes_with_one_thread(autograd_thread):
    """Threads of a pool that share a core wait for each other: comparing weights of ranks took minutes."""
    torch.set_num_threads(2)
    before = os.sched_getaffinity(0)
    with suppress(LookupError), pinned(CUDA) as core:
        assert core in before
        assert os.sched_getaffinity(0) == os.sched_getaffinity(autograd_thread) == {core}
        assert torch.get_num_threads() == 1
        raise LookupError
    assert os.sched_getaffinity(0) == os.sched_getaffinity(autograd_thread) == before
    assert torch.get_num_threads() == 2


def test_threads_started_inside_may_leave_the_core_afterwards(autograd_thread):
    before = os.sched_getaffinity(0)
    with waiting_thread() as other, ExitStack() as until_later:
        os.sched_setaffinity(other, {min(before)})
        with pinned(CUDA) as core:
            started = until_later.enter_context(waiting_thread())
            assert os.sched_getaffinity(started) == {core}
        assert os.sched_getaffinity(started) == before
        assert os.sched_getaffinity(other) == {min(before)}


@pytest.mark.parametrize("device", [CUDA, torch.device("cpu")])
def test_nothing_changes_on_a_cpu_or_if_the_system_forbids_pinning(autograd_thread, monkeypatch, device):
    if device == CUDA:
        monkeypatch.setattr(os, "sched_setaffinity", Mock(side_effect=PermissionError))
    before = os.sched_getaffinity(0)
    torch.set_num_threads(2)
    with pinned(device) as core:
        assert core is None
        assert (os.sched_getaffinity(0), torch.get_num_threads()) == (before, 2)


@pytest.mark.gpu(shared=True)
def test_backward_runs_on_the_core_of_its_caller():
    found = []
    leaf = torch.ones(4, device="cuda", requires_grad=True)
    leaf.register_hook(lambda _gradient: found.append((threading.get_native_id(), os.sched_getaffinity(0))))
    with pinned(CUDA) as core:
        leaf.sum().backward()
    ((thread, allowed),) = found
    assert thread != threading.get_native_id()
    assert allowed == {core}
    assert os.sched_getaffinity(thread) == os.sched_getaffinity(0)
