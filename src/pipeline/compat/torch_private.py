"""Torch's private names that this project uses, each with its reason and the public alternative that is missing.

`tests/compat/test_torch_private.py` fails if an upgrade has moved one. The private modules that the worker preloads
(`worker.child`) are not listed here, because it works without them.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Literal

import torch
import torch.autograd
import torch.cuda.memory
from torch import Tensor
from torch._C._profiler import _EventType as ProfilerEvent
from torch.autograd.graph import Node
from torch.nn.attention import SDPBackend
from torch.utils._python_dispatch import TorchDispatchMode, is_in_torch_dispatch_mode
from torch.utils._pytree import tree_leaves

# Bound directly: a wrapper function would cost as much as the call, which happens at every launch.

# Whether torch.func's transforms are active: autograd's own `Function.apply` asks the same; nothing public does.
are_functorch_transforms_active = torch._C._are_functorch_transforms_active
# What `torch.backends` calls for (backend, operation): its public names take 1 µs to read, and one sets another
# backend's value (`mkldnn.fp32_precision`).
get_fp32_precision = torch._C._get_fp32_precision_getter
set_fp32_precision = torch._C._set_fp32_precision_setter
# Copies many tensors in one launch, as torch's own optimizers do; the public `Tensor.copy_` launches once per tensor.
copy_all = torch._foreach_copy_
# Keeps a GPU busy for a number of clock cycles, as torch's own tests do; nothing public delays a stream.
keep_gpu_busy = torch.cuda._sleep
# The number of autograd's next node; profilers show these numbers, but nothing public reads them.
next_node_number = torch.autograd._get_sequence_nr

__all__ = [
    "ProfilerEvent",  # kinds of events in the profiler's tree; `torch.profiler` does not name them
    "TorchDispatchMode",  # intercepts every operator; documented in torch's notes, but in a private module
    "is_in_torch_dispatch_mode",  # whether such a mode is active; in the same private module
]


def node_number(node: Node) -> int:
    """Return a node's number; see `next_node_number`."""
    return node._sequence_nr()


def has_gradient_hooks(tensor: Tensor) -> bool:
    """Tell whether `register_hook` or `register_post_accumulate_grad_hook` of a tensor was called."""
    return bool(tensor._backward_hooks or tensor._post_accumulate_grad_hooks)


def base_of(tensor: Tensor) -> Tensor:
    """Return the tensor that a view looks into; itself if it is no view."""
    return tensor if tensor._base is None else tensor._base


def storage_uses(tensor: Tensor) -> int:
    """Count the references to a tensor's storage, including the tensor and the Python object made for the storage here.

    Nothing public does; torch's own CUDA graph trees use the same function.
    """
    return torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)


def parameters_of(module: torch.nn.Module) -> dict[str, Any]:
    """Return the dictionary in which a module looks up its own parameters, to be changed in place.

    Setting an attribute does the same, but checks so much that it takes ten times as long.
    """
    return module._parameters


def tensors_in(value: Any) -> list[Tensor]:
    """Return the tensors in nested lists, tuples, dictionaries and other containers registered with torch's pytrees.

    Pytrees are in a private module of torch.
    """
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def coalescing(device: torch.device) -> AbstractContextManager[Any]:
    """Combine the collectives inside this context into one asynchronous call; wait() on the context's value.

    The public `batch_isend_irecv` does so only for sends and receives.
    """
    # Imported here, so that other users of this module need not load torch.distributed.
    from torch.distributed.distributed_c10d import _coalescing_manager

    return _coalescing_manager(device=device, async_ops=True)


def context_parallel(mesh: Any, buffers: Mapping[Tensor, int]) -> AbstractContextManager[None]:
    """Make SDPA pass keys and values around a mesh; shard each buffer along its axis, in place and for good.

    Torch calls it a prototype, and it needs CUDA. Its functional successor is still private (torch 2.11, 2.13).
    """
    from torch.distributed.tensor.experimental import context_parallel as torchs

    tensors, axes = list(buffers), list(buffers.values())
    return torchs(mesh, buffers=tensors, buffer_seq_dims=axes, no_restore_buffers=set(tensors))


def record_memory_history(enabled: Literal["state", "all"] | None, **options: Any) -> None:
    """Start recording the allocator's history, or stop with None; documented by torch, but private by name."""
    torch.cuda.memory._record_memory_history(enabled, **options)


def dump_memory_snapshot(path: str) -> None:
    """Write the allocator's history to a file; documented by torch, but private by name."""
    torch.cuda.memory._dump_snapshot(path)


def in_backward() -> bool:
    """Tell whether this thread is running a backward pass; torch's own module tracker asks the same."""
    return torch._C._current_graph_task_id() != -1


def operator_name(operator: Any) -> str:
    """Return an operator's name with its namespace, "c10d::allreduce_"; the public name includes the overload."""
    return operator._schema.name


def sdpa_choice(q: Tensor, k: Tensor, v: Tensor, is_causal: bool, enable_gqa: bool) -> SDPBackend:
    """Return the backend that SDPA chooses for these inputs; nothing public does."""
    return SDPBackend(torch._fused_sdp_choice(q, k, v, is_causal=is_causal, enable_gqa=enable_gqa))


def cudnn_version() -> int | None:
    """Return cuDNN's version, None without cuDNN; `torch.backends.cudnn.version` would start CUDA."""
    return torch._C._cudnn.getVersionInt() if torch._C._has_cudnn else None


def profiler_tree(profile: torch.profiler.profile) -> list[Any]:
    """Return the root events of a profile, memory events included; `profile.events()` leaves out callers."""
    return _kineto(profile).experimental_event_tree()


def profiler_events(profile: torch.profiler.profile) -> list[Any]:
    """Return a profile's raw Kineto events; `profile.events()` takes twenty times as long."""
    return _kineto(profile).events()


def _kineto(profile: torch.profiler.profile) -> Any:
    assert profile.profiler is not None, "the profile has not run"
    return profile.profiler.kineto_results
