"""Launching a compiled kernel, one that is not there: there may be no GPU."""

from types import SimpleNamespace

import pytest
import triton.compiler.compiler
from triton import knobs
from triton.compiler import ASTSource, CompiledKernel

from pipeline.attention import flash_triton_launch

DEVICE, STREAM, GRID = 3, 77, (5, 1, 1)
ARGUMENTS = ("q", "k", 64)


class Kernel(CompiledKernel):
    """A kernel already loaded, which calls its hooks as Triton's launcher does and keeps what it was called with."""

    def __init__(self):
        self.src = object.__new__(ASTSource)
        self.src.fn = SimpleNamespace(launch_metadata=None)
        self.module, self.name, self.function, self.packed_metadata = "module", "name", "function", "packed"
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
    for module in (flash_triton_launch, triton.compiler.compiler):
        monkeypatch.setattr(module, "driver", SimpleNamespace(active=active))


def test_a_launch_is_what_triton_itself_would_have_launched():
    ours, theirs = Kernel(), Kernel()
    flash_triton_launch.launcher(ours, GRID)(*ARGUMENTS)
    theirs[GRID](*ARGUMENTS)
    assert ours.calls == theirs.calls == [([*GRID, (STREAM, DEVICE), "function", "packed"], ARGUMENTS)]


@pytest.mark.parametrize("chain", ["launch_enter_hook", "launch_exit_hook"])
def test_a_hook_hears_of_the_launches_after_it_was_added_until_it_is_removed(chain):
    launch = flash_triton_launch.launcher(Kernel(), GRID)
    heard = []
    hook = lambda metadata: heard.append(metadata.get()["name"])  # noqa: E731
    launch(*ARGUMENTS)
    getattr(knobs.runtime, chain).add(hook)
    try:
        launch(*ARGUMENTS)
    finally:
        getattr(knobs.runtime, chain).remove(hook)
    launch(*ARGUMENTS)
    assert heard == ["name"]
