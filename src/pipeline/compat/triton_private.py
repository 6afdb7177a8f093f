"""Triton's private names that this project uses, each with its reason and the public alternative that is missing.

`tests/compat/test_triton_private.py` fails if an upgrade has moved one.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
from torch import Tensor
from triton import knobs
from triton.compiler import CompiledKernel
from triton.compiler.compiler import max_shared_mem
from triton.runtime import driver


def is_interpreted() -> bool:
    """Tell whether kernels run in Triton's interpreter; the only public way is an environment variable."""
    return knobs.runtime.interpret


def shared_bytes_of(gpu: int) -> int:
    """Return how much shared memory a program may use on a GPU: the limit beyond which Triton rejects a kernel.

    `torch.cuda.get_device_properties` has it only for NVIDIA GPUs.
    """
    return max_shared_mem(gpu)


def launcher(compiled: CompiledKernel, grid: tuple[int, int, int], arguments: Sequence[Any]) -> Callable[..., None]:
    """Return a function that launches a kernel on the current device's current stream, as `compiled[grid]` does.

    For every launch Triton prepares hooks, such as its profiler's, and asks the driver whether each tensor's address is
    on the GPU. This function skips both (the hooks only while there are none). The public way is `kernel[grid]`.

    Private: a compiled kernel's `run`, `function`, `packed_metadata` and `metadata`, the order of `run`'s arguments,
    the active driver, and a hook chain's `calls`.
    Kernels for AMD GPUs have no `global_scratch_size` and need no such memory.
    """
    with_hooks = compiled[grid]  # this loads the kernel
    device, current_stream = driver.active.get_current_device(), driver.active.get_current_stream
    run, function, metadata = compiled.run, compiled.function, compiled.packed_metadata
    hooks = knobs.runtime
    needs_memory = getattr(compiled.metadata, "global_scratch_size", 0) > 0

    def launch(*tensors: Tensor | None) -> None:
        if needs_memory:
            triton.set_allocator(_allocate)  # per context: autograd's threads have contexts of their own
        if hooks.launch_enter_hook.calls or hooks.launch_exit_hook.calls:
            with_hooks(*tensors, *arguments)
        else:
            addresses = [None if tensor is None else tensor.data_ptr() for tensor in tensors]
            run(*grid, current_stream(device), function, metadata, None, None, None, *addresses, *arguments)

    return launch


def _allocate(size: int, _alignment: int, _stream: int | None) -> Tensor:
    """Allocate the memory in which each program builds its tensor descriptors."""
    return torch.empty(size, dtype=torch.int8, device="cuda")
