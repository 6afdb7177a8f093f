"""Launching a compiled kernel, one that is not there: there may be no GPU."""

import contextvars
from types import SimpleNamespace

import pytest
import torch
import triton.compiler.compiler
from triton import knobs
from triton.compiler import ASTSource, CompiledKernel
from triton.runtime import _allocation

from pipeline.attention.triton import direct_launch

DEVICE, STREAM, GRID = 3, 77, (5, 1, 1)
TENSORS, ARGUMENTS = (torch.zeros(1), None, torch.zeros(2)), (64, True)


class Kernel(CompiledKernel):
    """A kernel already loaded, which calls its hooks as Triton's launcher does and keeps what it was called with."""

    def __init__(self, global_scratch_size=0):
        self.src = object.__new__(ASTSource)
        self.src.fn = SimpleNamespace(launch_metadata=None)
        self.module, self.name, self.function, self.packed_metadata = "module", "name", "function", "packed"
        self.metadata = SimpleNamespace(global_scratch_size=global_scratch_size)
        self.calls = []
        self._run = self._record

    def _record(self, *given):
        *launch, metadata, enter_hook, exit_hook = given[:9]
        for hook in (enter_hook, exit_hook):
            if hook is not None:
                hook(metadata)
        self.calls.append((launch, given[9:]))


@pytest.fixture(autouse=True)
def device(monkeypatch):
    """Have Triton find a device and its stream."""
    active = SimpleNamespace(get_current_device=lambda: DEVICE, get_current_stream=lambda device: (STREAM, device))
    for module in (direct_launch, triton.compiler.compiler):
        monkeypatch.setattr(module, "driver", SimpleNamespace(active=active))


def test_a_launch_is_what_triton_itself_would_have_launched_with_the_tensors_addresses():
    ours, theirs = Kernel(), Kernel()
    addresses = (TENSORS[0].data_ptr(), None, TENSORS[2].data_ptr())
    direct_launch.launcher(ours, GRID, ARGUMENTS)(*TENSORS)
    theirs[GRID](*addresses, *ARGUMENTS)
    assert ours.calls == theirs.calls == [([*GRID, (STREAM, DEVICE), "function", "packed"], (*addresses, *ARGUMENTS))]


@pytest.mark.parametrize("chain", ["launch_enter_hook", "launch_exit_hook"])
def test_a_hook_hears_of_the_launches_after_it_was_added_until_it_is_removed(chain):
    launch = direct_launch.launcher(Kernel(), GRID, ARGUMENTS)
    heard = []
    hook = lambda metadata: heard.append(metadata.get()["name"])  # noqa: E731
    launch(*TENSORS)
    getattr(knobs.runtime, chain).add(hook)
    try:
        launch(*TENSORS)
    finally:
        getattr(knobs.runtime, chain).remove(hook)
    launch(*TENSORS)
    assert heard == ["name"]


@pytest.mark.parametrize("global_scratch_size", [0, 128])
def test_memory_for_tensor_descriptors_is_given_where_a_kernel_needs_it_in_every_thread(global_scratch_size):
    launch = direct_launch.launcher(Kernel(global_scratch_size), GRID, ARGUMENTS)
    new_thread = contextvars.Context()  # in which nothing that another has set holds
    new_thread.run(launch, *TENSORS)
    is_given = new_thread.run(_allocation._allocator.get) is direct_launch._allocate
    assert is_given == (global_scratch_size > 0)


@pytest.mark.parametrize("shape", [(128,), (1, 1, 128), (2, 3, 1, 16), (1, 1, 1, 8), (4, 1, 5, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_allocated_like_one_number_is_a_contiguous_tensor_of_the_shape(shape, dtype):
    found = torch.empty_like(direct_launch.like(shape, dtype, torch.device("cpu")))
    expected = torch.empty(shape, dtype=dtype)
    assert (found.shape, found.stride(), found.dtype) == (shape, expected.stride(), dtype)
    assert found.is_contiguous()
    assert found.untyped_storage().nbytes() == expected.untyped_storage().nbytes()
