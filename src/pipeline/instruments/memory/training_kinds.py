"""Measure a rank's memory by kind at points of a training step."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.distributed.optim import ZeroRedundancyOptimizer

from pipeline.compat.torch_private import tensors_in
from pipeline.formulas.training_state import KINDS

_ALLOCATOR_STATS = {
    "allocated": "allocated_bytes.all.current",
    "peak": "allocated_bytes.all.peak",
    "requested": "requested_bytes.all.current",
    "requested_peak": "requested_bytes.all.peak",
}


def kinds_bytes(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, int]:
    """Count the bytes of parameters, gradients and optimizer state on the model's device, each storage once."""
    parameters = list(model.parameters())
    device = parameters[0].device
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    state = tensors_in([[*each.state.values()] for each in _local(optimizer)])
    tensors: tuple[Sequence[Tensor], ...] = (parameters, gradients, state)
    return {kind: _storage_bytes(group, device) for kind, group in zip(KINDS, tensors, strict=True)}


def device_bytes(device: torch.device) -> dict[str, int]:
    """Return the caching allocator's bytes now, and their peaks since the last call of this; {} on a CPU.

    allocated and peak: bytes given out, in blocks that may be larger than requested; requested and requested_peak:
    bytes requested.
    """
    if device.type != "cuda":
        return {}
    torch.cuda.synchronize(device)
    stats = torch.cuda.memory_stats(device)
    torch.cuda.reset_peak_memory_stats(device)
    return {name: stats[key] for name, key in _ALLOCATOR_STATS.items()}


def _local(optimizer: torch.optim.Optimizer) -> list[torch.optim.Optimizer]:
    """Return the optimizers that hold this rank's state: this one and those in its attributes, also in lists."""
    if isinstance(optimizer, ZeroRedundancyOptimizer):
        return [optimizer.optim]
    values = [each for value in vars(optimizer).values() for each in (value if isinstance(value, list) else [value])]
    return [optimizer, *(each for each in values if isinstance(each, torch.optim.Optimizer))]


def _storage_bytes(tensors: Iterable[Tensor], device: torch.device) -> int:
    storages = {
        local.untyped_storage().data_ptr(): local.untyped_storage().nbytes()
        for local in map(_own_part, tensors)
        if local.device == device
    }
    return sum(storages.values())


def _own_part(tensor: Tensor) -> Tensor:
    """Return what this rank holds of a tensor, which may be a DTensor."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor
