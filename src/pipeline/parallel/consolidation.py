"""Bring an optimizer's state together from the ranks that keep it."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor


class TensorOutline(NamedTuple):
    """What the other ranks must know of a tensor to receive it."""

    shape: torch.Size
    dtype: torch.dtype


def gather_state(
    parameters: list[Tensor], owners: Mapping[Tensor, int], own_state: Mapping[Tensor, dict[str, Any]]
) -> dict[int, dict[str, Any]]:
    """Return the state of every parameter by its position, on every rank. A collective.

    Tensors are copied to the CPU one after the other, so that no device holds more than one of another rank's.
    """
    own_outlines = {
        position: {name: _outline(value) for name, value in own_state[parameter].items()}
        for position, parameter in enumerate(parameters)
        if parameter in own_state
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
    """Stand in for a tensor, but for a single number, which travels as it is like all that is no tensor."""
    if not isinstance(value, Tensor):
        return value
    return TensorOutline(value.shape, value.dtype) if value.dim() else value.cpu()


def _receive(outline: Any, own: Tensor | None, owner: int, device: torch.device) -> Any:
    if not isinstance(outline, TensorOutline):
        return outline
    if dist.get_rank() == owner:
        value = own.detach().to(device).contiguous()
    else:
        value = torch.empty(outline.shape, dtype=outline.dtype, device=device)
    dist.broadcast(value.view(torch.uint8), src=owner)
    return value.to("cpu", copy=True)
