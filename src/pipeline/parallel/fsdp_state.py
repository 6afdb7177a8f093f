"""The whole weights of a sharded module: gathered by name, and loaded into the shards."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pipeline.parallel.fsdp_units import Flat
from pipeline.parallel.replicas import prepare_on_all_ranks


@torch.no_grad()
def full_state(module: nn.Module, flats: Sequence[Flat]) -> dict[str, Any]:
    """Return what the module's `state_dict()` would be without shards, on the CPU. A collective.

    One flat buffer is gathered at a time, so that the device need not hold all.
    """
    fulls: dict[Tensor, Tensor] = {}
    for flat in flats:
        whole = flat.piece.new_empty(flat.layout.elements)
        dist.all_gather_into_tensor(whole, flat.piece)
        fulls |= {
            shard: full.to("cpu", copy=True) for shard, full in zip(flat.shards, flat.split_whole(whole), strict=True)
        }
    return {name: _on_cpu(fulls.get(value, value)) for name, value in module.state_dict(keep_vars=True).items()}


def _on_cpu(value: Any) -> Any:
    return value.detach().to("cpu", copy=True) if isinstance(value, Tensor) and value.device.type != "cpu" else value


@torch.no_grad()
def load_full_state(module: nn.Module, flats: Sequence[Flat], state: Mapping[str, Any]) -> None:
    """Copy each rank's part of a whole state dict into its shards, and the rest as it is. A collective.

    Raises ValueError, on every rank, for names or shapes that differ from the module's.
    """
    homes: dict[Tensor, tuple[Flat, int]] = {
        shard: (flat, index) for flat in flats for index, shard in enumerate(flat.shards)
    }
    own = module.state_dict(keep_vars=True)
    prepare_on_all_ranks("states to load", lambda: _check(own, homes, state))
    rank = dist.get_rank()
    for name, value in own.items():
        if value in homes:
            flat, index = homes[value]
            begin, end = flat.layout.own(index, rank)
            value.copy_(state[name].reshape(-1)[begin:end])
        elif isinstance(value, Tensor):
            value.copy_(state[name])


def _check(own: Mapping[str, Any], homes: Mapping[Tensor, tuple[Flat, int]], state: Mapping[str, Any]) -> list[str]:
    """Describe a state to load; raises ValueError if it does not fit."""
    if own.keys() != state.keys():
        missing, unknown = sorted(own.keys() - state.keys()), sorted(state.keys() - own.keys())
        raise ValueError(f"the state to load lacks {missing or 'nothing'}, and has in excess {unknown or 'nothing'}")
    for name, value in own.items():
        if isinstance(value, Tensor):
            wanted = homes[value][0].shapes[homes[value][1]] if value in homes else value.shape
            if state[name].shape != wanted:
                raise ValueError(f"{name}: must have shape {tuple(wanted)}, got {tuple(state[name].shape)}")
    return list(own)
