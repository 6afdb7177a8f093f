"""Triton's private names: all that this project uses, each with its reason and the public way that is missing.

`tests/compat/test_triton_private.py` fails by name where an upgrade has moved one.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
from torch import Tensor
from triton import knobs
from triton.compiler import CompiledKernel
from triton.runtime import driver


def is_interpreted() -> bool:
    """Tell whether kernels run in Triton's interpreter, which in public only an environment variable says."""
    return knobs.runtime.interpret


def launcher(compiled: CompiledKernel, grid: tuple[int, int, int], arguments: Sequence[Any]) -> Callable[..., None]:
    """Return what launches a kernel on the current stream of the device that is now current, as `compiled[grid]` does.

    Triton prepares every launch for hooks on it, such as its profiler's, and asks every tensor for its address and the
    driver whether it is one of the GPU's: here that is left out, the hooks' part while there are none. In public there
    is only `kernel[grid]`.

    Private are a compiled kernel's `run`, `function`, `packed_metadata` and `metadata`, the order in which `run` takes
    them, the active driver, and `calls` of a chain of hooks.
    """
    with_hooks = compiled[grid]  # this loads it
    device, current_stream = driver.active.get_current_device(), driver.active.get_current_stream
    run, function, metadata = compiled.run, compiled.function, compiled.packed_metadata
    hooks = knobs.runtime
    needs_memory = compiled.metadata.global_scratch_size > 0

    def launch(*tensors: Tensor | None) -> None:
        if needs_memory:
            triton.set_allocator(_allocate)  # for this context: a thread of autograd's has one of its own
        if hooks.launch_enter_hook.calls or hooks.launch_exit_hook.calls:
            with_hooks(*tensors, *arguments)
        else:
            addresses = [None if tensor is None else tensor.data_ptr() for tensor in tensors]
            run(*grid, current_stream(device), function, metadata, None, None, None, *addresses, *arguments)

    return launch


def _allocate(size: int, _alignment: int, _stream: int | None) -> Tensor:
    """Give Triton the memory in which each program makes its tensor descriptors."""
    return torch.empty(size, dtype=torch.int8, device="cuda")
