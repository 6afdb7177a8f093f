"""Treat running out of memory, on a GPU or on the host, as an outcome of a call."""

import gc
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

# Messages of out-of-memory errors other than torch's own exception.
_TEXTS = (
    "DefaultCPUAllocator: can't allocate memory",
    "[Errno 12] Cannot allocate memory",  # from the kernel, for a process or a mapping
    "CUDA out of memory",  # wrapped in another error, as the compiler does
    "CUDA error: out of memory",
    "Triton Error [CUDA]: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an exception says that memory ran out, on a GPU or on the host."""
    # Imported here: the code that runs cells must not import torch before its threads are set.
    import torch

    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError | OSError) and any(text in str(error) for text in _TEXTS)


def attempt(function: Callable[..., T], *arguments: Any) -> tuple[T | None, str | None]:
    """Call a function; return its value, or None and the reason if memory ran out.

    What the failed call held is freed before this returns, so that the next call finds all the memory. Any other
    exception passes through.
    """
    try:
        return function(*arguments), None
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    # Only here, after the exception and the frames that it kept alive are gone.
    free_memory()
    return None, reason


def free_memory() -> None:
    """Collect garbage, and return the memory that torch's allocator caches to the GPU."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
