"""Check that Triton's private names still mean the same, with a stand-in for a kernel, since there may be no GPU."""

import contextvars
import inspect
from types import SimpleNamespace

import pytest
import torch
import triton.compiler.compiler
from triton import knobs
from triton.compiler import ASTSource, CompiledKernel
from triton.runtime import _allocation

from pipeline.compat import triton_private

DEVICE, STREAM, GRID = 3, 77, (5, 1, 1)
TENSORS, ARGUMENTS = (torch.zeros(1), None, torch.zeros(2)), (64, True)


class Kernel(CompiledKernel):
    """A loaded kernel that calls its hooks as Triton's launcher does and records what it was called with."""

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
    active = SimpleNamespace(get_current_device=lambda: DEVICE, get_current_stream=lambda device: (STREAM, device))
    for module in (triton_private, triton.compiler.compiler):
        monkeypatch.setattr(module, "driver", SimpleNamespace(active=active))


def test_a_launch_equals_tritons_own_with_the_tensors_addresses():
    ours, theirs = Kernel(), Kernel()
    addresses = (TENSORS[0].data_ptr(), None, TENSORS[2].data_ptr())
    triton_private.launcher(ours, GRID, ARGUMENTS)(*TENSORS)
    theirs[GRID](*addresses, *ARGUMENTS)
    assert ours.calls == theirs.calls == [([*GRID, (STREAM, DEVICE), "function", "packed"], (*addresses, *ARGUMENTS))]


@pytest.mark.parametrize("chain", ["launch_enter_hook", "launch_exit_hook"])
def test_a_hook_sees_launches_from_when_it_is_added_until_it_is_removed(chain):
    launch, hooks = triton_private.launcher(Kernel(), GRID, ARGUMENTS), getattr(knobs.runtime, chain)
    names = []
    hook = lambda metadata: names.append(metadata.get()["name"])  # noqa: E731
    for change in (None, hooks.add, hooks.remove):
        if change:
            change(hook)
        launch(*TENSORS)
    assert names == ["name"]


@pytest.mark.parametrize("size", [None, 0, 128])  # None: kernels for AMD GPUs lack the attribute
def test_kernels_that_need_descriptor_memory_get_it_in_every_thread(size):
    kernel = Kernel(size)
    if size is None:
        del kernel.metadata.global_scratch_size
    new_thread = contextvars.Context()  # without anything that another thread has set
    new_thread.run(triton_private.launcher(kernel, GRID, ARGUMENTS), *TENSORS)
    is_given = new_thread.run(_allocation._allocator.get) is triton_private._allocate
    assert is_given == bool(size)
    assert len(kernel.calls) == 1


def test_shared_bytes_of_is_the_limit_by_which_triton_rejects_kernels(monkeypatch):
    utils = SimpleNamespace(get_device_properties=lambda gpu: {"max_shared_mem": 1000 + gpu})
    active = SimpleNamespace(active=SimpleNamespace(utils=utils))
    monkeypatch.setattr(triton.compiler.compiler, "driver", active)
    assert triton_private.shared_bytes_of(3) == 1003
    assert "max_shared_mem(device)" in inspect.getsource(CompiledKernel._init_handles)


def test_triton_still_has_its_knobs_and_compiled_kernel_attributes():
    assert all(hasattr(knobs.runtime, name) for name in ("interpret", "launch_enter_hook", "launch_exit_hook"))
    assert isinstance(CompiledKernel.run, property)
    source = inspect.getsource(CompiledKernel)
    assert all(f"self.{name}" in source for name in ("function", "packed_metadata", "metadata"))
