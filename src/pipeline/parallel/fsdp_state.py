"""Gather the full weights of a sharded module by name, and load them into the shards."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pipeline.parallel.fsdp_units import Flat
from pipeline.parallel.replicas import prepare_on_all_ranks


@torch.no_grad()
def full_state(module: nn.Module, flats: Sequence[Flat], to: torch.device | str | None = None) -> dict[str, Any]:
    """Return a copy of what the module's `state_dict()` would be without shards. A collective.

    to: the device of the copies; None leaves each where it is. One flat buffer is gathered at a time.
    """
    fulls: dict[int, Tensor] = {}  # by id(), because extra state may be of any type
    for flat in flats:
        whole = flat.piece.new_empty(flat.layout.elements)
        dist.all_gather_into_tensor(whole, flat.piece)
        fulls |= {
            id(shard): _copied(full, to) for shard, full in zip(flat.shards, flat.split_whole(whole), strict=True)
        }
    own = module.state_dict(keep_vars=True)
    return {name: fulls[id(value)] if id(value) in fulls else _copied(value, to) for name, value in own.items()}


def _copied(value: Any, to: torch.device | str | None) -> Any:
    """Copy a value, because training must not change what was saved."""
    return value.detach().to(to, copy=True) if isinstance(value, Tensor) else copy.deepcopy(value)


@torch.no_grad()
def load_full_state(module: nn.Module, flats: Sequence[Flat], state: Mapping[str, Any]) -> None:
    """Copy each rank's part of a full state dict into its shards, and everything else as is. A collective.

    Raises ValueError, on every rank, for names or shapes that differ from the module's.
    """
    homes = {id(shard): (flat, index) for flat in flats for index, shard in enumerate(flat.shards)}
    own = module.state_dict(keep_vars=True)
    prepare_on_all_ranks("states to load", lambda: _check(own, homes, state))

    def own_part(name: str) -> Any:
        if id(own[name]) not in homes:
            return state[name]
        flat, index = homes[id(own[name])]
        return state[name].reshape(-1)[slice(*flat.layout.own(index, dist.get_rank()))]

    module.load_state_dict({name: own_part(name) for name in own})


def _check(own: Mapping[str, Any], homes: Mapping[int, tuple[Flat, int]], state: Mapping[str, Any]) -> list[str]:
    """Describe a state to load; raises ValueError if it does not fit."""
    if own.keys() != state.keys():
        missing, unknown = sorted(own.keys() - state.keys()), sorted(state.keys() - own.keys())
        raise ValueError(f"the state to load lacks {missing or 'nothing'}, and has in excess {unknown or 'nothing'}")
    for name, value in own.items():
        if isinstance(value, Tensor):
            flat, index = homes.get(id(value), (None, 0))
            wanted = value.shape if flat is None else flat.shapes[index]
            if state[name].shape != wanted:
                raise ValueError(f"{name}: must have shape {tuple(wanted)}, got {tuple(state[name].shape)}")
    return list(own)
