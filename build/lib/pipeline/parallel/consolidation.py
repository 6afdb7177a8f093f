"""Gather an optimizer's state from the ranks that keep it."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from pipeline.parallel.replicas import memory_as_bytes


class TensorOutline(NamedTuple):
    """What other ranks must know to receive a tensor; strides without gaps."""

    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype


def gather_state(
    parameters: list[Tensor], owners: Mapping[Tensor, int], own_state: Mapping[Tensor, dict[str, Any]]
) -> dict[int, dict[str, Any]]:
    """Return the state of every parameter by its position, on every rank. A collective.

    Tensors are copied to the CPU one by one, so that no device holds more than one copy.
    """
    # An optimizer's state is a defaultdict: looking up another rank's parameter leaves an empty entry, to be ignored.
    own_outlines = {
        position: {name: _outline(value) for name, value in own_state[parameter].items()}
        for position, parameter in enumerate(parameters)
        if owners[parameter] == dist.get_rank() and parameter in own_state
    }
    by_rank: list[dict] = [{} for _ in range(dist.get_world_size())]
    dist.all_gather_object(by_rank, own_outlines)
    outlines = {position: entry for entries in by_rank for position, entry in entries.items()}
    return {
        position: {
            name: _receive(outline, own_state.get(parameter, {}).get(name), owners[parameter], parameter.device)
            for name, outline in outlines[position].items()
        }
        for position, parameter in enumerate(parameters)
        if position in outlines
    }


def _outline(value: Any) -> Any:
    """Return the outline of a tensor; return single numbers and all other values as they are."""
    if not isinstance(value, Tensor):
        return value
    if value.dim() == 0:
        return value.cpu()
    # The strides of a copy keep the tensor's memory order: fused optimizers require the parameter's.
    return TensorOutline(value.shape, torch.empty_like(value, device="meta").stride(), value.dtype)


def _receive(outline: Any, own: Any, owner: int, device: torch.device) -> Any:
    if not isinstance(outline, TensorOutline):
        return outline
    value = torch.empty_strided(outline.shape, outline.stride, dtype=outline.dtype, device=device)
    if dist.get_rank() == owner:
        value.copy_(own.detach())
    dist.broadcast(memory_as_bytes(value), src=owner)
    return value.cpu()
