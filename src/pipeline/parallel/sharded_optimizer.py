"""An optimizer whose state is shared out over the ranks (ZeRO stage 1, Rajbhandari et al. 2020, section 5.1)."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import _coalescing_manager
from torch.optim import Optimizer

from pipeline.parallel.consolidation import gather_state
from pipeline.parallel.partition import least_loaded
from pipeline.parallel.replicas import check_same_on_all_ranks, describe

# What of a parameter group is not a hyperparameter.
MEMBERS = ("params", "param_names")


class ShardedOptimizer(Optimizer):
    """Let each rank update, and keep the state of, its share of the parameters; then broadcast what it updated.

    Whole parameters are shared out, the largest first, each to the rank with the fewest elements so far; every rank
    computes the same partition. It stands in for `optimizer_cls(params, **kwargs)` wherever the update of a
    parameter depends on no other parameter (SGD, Adam, AdamW, ...; not L-BFGS). `state` holds this rank's share.
    Every rank must hold the same parameters and gradients, as data-parallel training sees to. A step broadcasts each
    trained parameter once from its owner: of P bytes in all, a rank with a share of p sends p and receives P − p.

    params: parameters, or parameter groups, as any `torch.optim.Optimizer` takes them.
    Construction, `add_param_group`, `step` and `state_dict` are collectives of the default process group. Raises
    ValueError, on every rank, where the ranks' parameters differ.
    """

    def __init__(self, params: Iterable, optimizer_cls: type[Optimizer], **kwargs: Any):
        self._optimizer_cls = optimizer_cls
        self._kwargs = kwargs
        self._shard: Optimizer | None = None
        self._owners: dict[Tensor, int] = {}
        self._shard_elements = [0] * dist.get_world_size()
        super().__init__(params, dict(kwargs))
        self.state = self._shard.state

    @property
    def shard_elements(self) -> tuple[int, ...]:
        """The number of trained elements that each rank keeps state for."""
        return tuple(self._shard_elements)

    def owner(self, parameter: Tensor) -> int:
        """Return the rank that updates a parameter."""
        return self._owners[parameter]

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Share out one more group of parameters, with hyperparameters of its own. A collective.

        Raises ValueError, on every rank, where the ranks' parameters differ.
        """
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        named = ((f"parameter {position}", parameter) for position, parameter in enumerate(group["params"]))
        check_same_on_all_ranks("parameters of the group", describe(named))
        sizes = [parameter.numel() if parameter.requires_grad else 0 for parameter in group["params"]]
        owners = least_loaded(sizes, self._shard_elements)
        self._owners.update(zip(group["params"], owners, strict=True))
        self._add_to_shard(group)

    def _add_to_shard(self, group: dict[str, Any]) -> None:
        """Give the own part of a group, which may be empty, to the shard's optimizer; take on its defaults."""
        own = {**_hyperparameters(group), "params": self._own(group)}
        if self._shard is None:
            self._shard = self._optimizer_cls([own], **self._kwargs)
            self.defaults = dict(self._shard.defaults)
        else:
            self._shard.add_param_group(own)
        group.update(_hyperparameters(self._shard.param_groups[-1]))

    def _own(self, group: dict[str, Any]) -> list[Tensor]:
        return [parameter for parameter in group["params"] if self._owners[parameter] == dist.get_rank()]

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the own share, then bring every parameter up to date on every rank. A collective.

        closure: computes the loss anew, its gradients synchronised over the ranks; its result is returned.
        """
        self._pass_on_hyperparameters()
        loss = self._shard.step(closure)
        self._broadcast_parameters()
        return loss

    def _pass_on_hyperparameters(self) -> None:
        """Let the shard's optimizer see what a scheduler or the user changed."""
        for group, own in zip(self.param_groups, self._shard.param_groups, strict=True):
            own.update(_hyperparameters(group))

    def _broadcast_parameters(self) -> None:
        trained = [(parameter.detach(), owner) for parameter, owner in self._owners.items() if parameter.requires_grad]
        if dist.get_backend() != dist.Backend.NCCL:
            for work in list(_broadcasts(trained)):
                work.wait()
            return
        # One call for all, in place: NCCL spreads them over its channels, so that the owners send at the same time.
        with _coalescing_manager(device=trained[0][0].device, async_ops=True) as together:
            for _ in _broadcasts(trained):
                pass
        together.wait()

    def state_dict(self) -> dict[str, Any]:
        """Return what `optimizer_cls` would without sharding, on every rank: all state, copied to the CPU.

        A collective. The result can be loaded into a plain optimizer of the same parameters, and into a sharded one
        of any world size.
        """
        consolidated = super().state_dict()
        consolidated["state"] = gather_state(list(self._parameters()), self._owners, self._shard.state)
        return consolidated

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over hyperparameters, and the state of the own share, from the state dict of a plain optimizer.

        Raises ValueError where its groups are not of the sizes of these.
        """
        groups = state_dict["param_groups"]
        super().load_state_dict({"state": {}, "param_groups": groups})
        own_state, own_groups, count = {}, [], 0
        for group, saved in zip(self.param_groups, groups, strict=True):
            saved_indices = dict(zip(group["params"], saved["params"], strict=True))
            own = self._own(group)
            own_groups.append({**_hyperparameters(saved), "params": list(range(count, count + len(own)))})
            for index, parameter in enumerate(own, start=count):
                if saved_indices[parameter] in state_dict["state"]:
                    own_state[index] = state_dict["state"][saved_indices[parameter]]
            count += len(own)
        self._shard.load_state_dict({"state": own_state, "param_groups": own_groups})
        self.state = self._shard.state

    def _parameters(self) -> Iterator[Tensor]:
        for group in self.param_groups:
            yield from group["params"]


def _hyperparameters(group: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name not in MEMBERS}


def _broadcasts(tensors: list[tuple[Tensor, int]]) -> Iterator[dist.Work]:
    for tensor, owner in tensors:
        yield dist.broadcast(tensor, src=owner, async_op=True)
