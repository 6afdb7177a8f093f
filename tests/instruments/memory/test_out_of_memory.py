import gc
import weakref
from unittest.mock import Mock

import pytest
import torch

from pipeline.instruments.memory.out_of_memory import attempt, is_out_of_memory


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB."),
        MemoryError(),
        RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried 1 TB"),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("Triton Error [CUDA]: out of memory"),
        RuntimeError("backend='inductor' raised:\nOutOfMemoryError: CUDA out of memory. Tried to allocate"),
    ],
)
def test_every_wording_of_out_of_memory_is_recognised(error):
    assert is_out_of_memory(error)
    value, reason = attempt(Mock(side_effect=error))
    assert value is None
    assert reason


def test_a_kernel_out_of_shared_memory_is_not_out_of_memory():
    assert not is_out_of_memory(RuntimeError("out of resource: shared memory, Required: 98304"))


def test_memory_of_the_failed_call_is_freed_before_attempt_returns(request):
    held = []

    def fail():
        tensor = torch.ones(1000)
        held.append(weakref.ref(tensor))
        cycle = [tensor]
        cycle.append(cycle)
        raise MemoryError("no more")

    request.addfinalizer(gc.enable)
    gc.disable()
    assert attempt(fail)[1] == "no more"
    assert held[0]() is None
