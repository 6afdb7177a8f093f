"""Torch's private names: all that this project uses, each with its reason and the public way that is missing.

Nothing is caught here: `tests/compat/test_torch_private.py` fails by name where an upgrade has moved one. Left where
they are named are modules that the worker imports ahead of need (`cells.worker.child`), which it may fail to import.
"""

from contextlib import AbstractContextManager
from typing import Any, Literal

import torch
import torch.autograd
import torch.cuda.memory
from torch import Tensor
from torch._C._profiler import _EventType as ProfilerEvent
from torch.autograd.graph import Node
from torch.nn.attention import SDPBackend
from torch.utils._python_dispatch import TorchDispatchMode

# Bound once: a function around what is called at every launch would cost as much as the call.

# Whether torch.func's transforms are on: autograd's own `Function.apply` asks it, and nothing public tells.
are_functorch_transforms_active = torch._C._are_functorch_transforms_active
# What `torch.backends` calls for (backend, operation): its public names take 1 µs to read, and set another backend's
# (`mkldnn.fp32_precision`).
get_fp32_precision = torch._C._get_fp32_precision_getter
set_fp32_precision = torch._C._set_fp32_precision_setter
# Copies many tensors in one launch, as torch's own optimizers do; the public `Tensor.copy_` takes a launch each.
copy_all = torch._foreach_copy_
# Keeps a GPU busy for a number of clock cycles, as torch's own tests do; nothing public makes a stream wait so long.
keep_gpu_busy = torch.cuda._sleep
# The number that autograd gives its next node, and that of a node: profilers show them, nothing public reads them.
next_node_number = torch.autograd._get_sequence_nr

__all__ = [
    "ProfilerEvent",  # the kinds of events in the profiler's tree, which `torch.profiler` does not name
    "TorchDispatchMode",  # sees every operator; documented in torch's notes, but its module is private by name
    "are_functorch_transforms_active",
    "coalescing",
    "copy_all",
    "cudnn_version",
    "dump_memory_snapshot",
    "get_fp32_precision",
    "keep_gpu_busy",
    "next_node_number",
    "node_number",
    "operator_name",
    "profiler_events",
    "profiler_tree",
    "record_memory_history",
    "sdpa_choice",
    "set_fp32_precision",
    "storage_uses",
]


def node_number(node: Node) -> int:
    """Return the number that autograd gave a node; see `next_node_number`."""
    return node._sequence_nr()


def storage_uses(tensor: Tensor) -> int:
    """Count what keeps a tensor's storage, itself and the object that Python makes for the storage here included.

    Nothing public tells; torch's own CUDA graph trees ask the same.
    """
    return torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)


def coalescing(device: torch.device) -> AbstractContextManager[Any]:
    """Gather the collectives inside into one call, which runs on by itself: wait for what the context gives.

    The public `batch_isend_irecv` does so for sends and receives alone.
    """
    # Here, so that who has no need of torch.distributed does not import it.
    from torch.distributed.distributed_c10d import _coalescing_manager

    return _coalescing_manager(device=device, async_ops=True)


def record_memory_history(enabled: Literal["state", "all"] | None, **options: Any) -> None:
    """Have the allocator keep its history, or with None no longer; torch's documented way, but private by name."""
    torch.cuda.memory._record_memory_history(enabled, **options)


def dump_memory_snapshot(path: str) -> None:
    """Write the allocator's history to a file; torch's documented way, but private by name."""
    torch.cuda.memory._dump_snapshot(path)


def operator_name(operator: Any) -> str:
    """Return an operator's name with its namespace, "c10d::allreduce_"; in public it has none without its overload."""
    return operator._schema.name


def sdpa_choice(q: Tensor, k: Tensor, v: Tensor, is_causal: bool) -> SDPBackend:
    """Return the backend that SDPA takes for these inputs, which nothing public tells."""
    return SDPBackend(torch._fused_sdp_choice(q, k, v, is_causal=is_causal))


def cudnn_version() -> int | None:
    """Return cuDNN's version, None without it; `torch.backends.cudnn.version` asks each GPU, which starts CUDA."""
    return torch._C._cudnn.getVersionInt() if torch._C._has_cudnn else None


def profiler_tree(profile: torch.profiler.profile) -> list[Any]:
    """Return the roots of all events that a profile saw, memory's among them; `profile.events()` leaves callers out."""
    return _kineto(profile).experimental_event_tree()


def profiler_events(profile: torch.profiler.profile) -> list[Any]:
    """Return a profile's events as Kineto gives them: `profile.events()` takes twenty times as long to read."""
    return _kineto(profile).events()


def _kineto(profile: torch.profiler.profile) -> Any:
    assert profile.profiler is not None, "the profile has not run"
    return profile.profiler.kineto_results
