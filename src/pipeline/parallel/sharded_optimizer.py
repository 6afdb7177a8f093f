"""An optimizer whose state is sharded over the ranks (ZeRO stage 1, Rajbhandari et al. 2020, section 5.1)."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from pipeline.parallel.broadcasts import broadcast_from_owners
from pipeline.parallel.consolidation import gather_state
from pipeline.parallel.groups import Group, copy_hyperparameters, describe_group, hyperparameters
from pipeline.parallel.partition import Partition
from pipeline.parallel.replicas import is_shard, prepare_on_all_ranks


class ShardedOptimizer(Optimizer):
    """An optimizer whose ranks each keep the state of a share of the parameters, update these and broadcast them.

    Whole parameters are assigned, the largest first, each to the rank with the fewest elements so far; every rank
    computes the same partition. The optimizer replaces `optimizer_cls(params, **kwargs)` wherever the update of a
    parameter depends on no other parameter (SGD, Adam, AdamW, ...; not L-BFGS). `state` holds this rank's share.
    Every rank must hold the same parameters and gradients, as data-parallel training ensures. A step broadcasts each
    parameter that is or ever was trained once from its owner: of P bytes in all, a rank with a share of p sends p and
    receives P − p.

    params: parameters or parameter groups, as for any `torch.optim.Optimizer`.
    Construction, `add_param_group`, `step` and `state_dict` are collectives of the default process group. Raises
    ValueError, on every rank, for parameters of an FSDP module, and if the ranks' groups differ or only some ranks fail
    to make theirs; if all fail, the exception of `optimizer_cls`.
    """

    def __init__(self, params: Iterable, optimizer_cls: type[Optimizer], **kwargs: Any):
        self._partition = Partition.empty(dist.get_world_size())
        prepare_on_all_ranks("parameter groups", partial(self._construct, params, optimizer_cls, kwargs))
        self._sent: list[tuple[Tensor, int]] = []
        self._never_trained = list(self._partition.owners)

    def _construct(self, params: Iterable, optimizer_cls: type[Optimizer], kwargs: dict[str, Any]) -> list[str]:
        """Make the groups and the shard's optimizer, adopt its defaults, and describe the groups."""
        super().__init__(params, dict(kwargs))
        _refuse_shards(self._parameters())
        self._partition = self._partition.with_added(list(self._parameters()))
        self._shard: Optimizer = optimizer_cls([self._own_part(group) for group in self.param_groups], **kwargs)
        self.defaults = dict(self._shard.defaults)
        self.state = self._shard.state
        copy_hyperparameters(self._shard.param_groups, self.param_groups)
        described = [line for entry in enumerate(self.param_groups) for line in describe_group(*entry)]
        return [f"{len(self.param_groups)} groups for {optimizer_cls.__name__}", *described]

    @property
    def shard_elements(self) -> tuple[int, ...]:
        """The number of elements that each rank keeps state for: parameters that were trained when added."""
        return self._partition.trained_elements

    def owner(self, parameter: Tensor) -> int:
        """Return the rank that updates a parameter."""
        return self._partition.owners[parameter]

    def add_param_group(self, param_group: Group) -> None:
        """Add one more group of parameters with its own hyperparameters. A collective.

        Raises as construction does; the optimizer is then unchanged.
        """
        if not hasattr(self, "_shard"):  # called by Optimizer.__init__
            super().add_param_group(param_group)
            return
        count, partition = len(self.param_groups), self._partition
        try:
            prepare_on_all_ranks("parameter groups", partial(self._add, param_group))
        except Exception:
            del self.param_groups[count:], self._shard.param_groups[count:]
            self._partition = partition
            raise
        self._never_trained += self.param_groups[-1]["params"]

    def _add(self, param_group: Group) -> list[str]:
        """Add a group, and this rank's part of it, which may be empty, to the shard's optimizer; describe the group."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        _refuse_shards(group["params"])
        self._partition = self._partition.with_added(group["params"])
        self._shard.add_param_group(self._own_part(group))
        group.update(hyperparameters(self._shard.param_groups[-1]))
        return describe_group(len(self.param_groups) - 1, group)

    def _own_part(self, group: Group) -> Group:
        return {**hyperparameters(group), "params": self._own(group)}

    def _own(self, group: Group) -> list[Tensor]:
        return [parameter for parameter in group["params"] if self.owner(parameter) == dist.get_rank()]

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None, **kwargs: Any) -> Any:
        """Update this rank's share, then bring every parameter up to date on every rank. A collective.

        closure: recomputes the loss and gradients, synchronised over the ranks; its result is returned. Keywords go to
        the step of `optimizer_cls`.
        """
        # A scheduler or the user changes hyperparameters between steps; some optimizers change them in a step.
        copy_hyperparameters(self.param_groups, self._shard.param_groups)
        loss = self._shard.step(closure and partial(self._evaluate, closure), **kwargs)
        copy_hyperparameters(self._shard.param_groups, self.param_groups)
        broadcast_from_owners(self._updated())
        return loss

    def _evaluate(self, closure: Callable[[], Any]) -> Any:
        """Call the closure, which may read and change the hyperparameters during a step."""
        copy_hyperparameters(self._shard.param_groups, self.param_groups)
        loss = closure()
        copy_hyperparameters(self.param_groups, self._shard.param_groups)
        return loss

    def _updated(self) -> list[tuple[Tensor, int]]:
        """Return the parameters that a step may have changed, with their owners, in the same order on every rank."""
        # An optimizer updates whatever has a gradient, and a parameter may keep its gradient when frozen. So parameters
        # that were ever trained are always sent: another rank may have kept the gradient, and would wait for this one.
        never_trained = [p for p in self._never_trained if not p.requires_grad and p.grad is None]
        if len(never_trained) < len(self._never_trained):
            self._never_trained, left_out = never_trained, set(never_trained)
            self._sent = [entry for entry in self._partition.owners.items() if entry[0] not in left_out]
        return self._sent

    def state_dict(self) -> dict[str, Any]:
        """Return what `optimizer_cls` would without sharding, on every rank: all state, copied to the CPU.

        A collective. The result can be loaded into a plain optimizer of the same parameters, and into a sharded one
        of any world size.
        """

        def with_all_state(_: Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
            state = gather_state(list(self._parameters()), self._partition.owners, self._shard.state)
            return {**state_dict, "state": state}

        # First of the hooks, so that the user's hooks see the full state.
        with self.register_state_dict_post_hook(with_all_state, prepend=True):
            return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load hyperparameters, and the state of this rank's share, from the state dict of a plain optimizer.

        Raises ValueError if its groups differ in number or size.
        """
        full_state_dict: dict[str, Any] = {}

        def keep_back_state(_: Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
            full_state_dict.update(state_dict)
            return {**state_dict, "state": {}}  # Optimizer would copy all parameters' state to their device

        def load_share(_: Optimizer) -> None:
            self._load_share(full_state_dict)

        # Innermost: after the user's pre-load hooks, before the user's post-load hooks.
        with (
            self.register_load_state_dict_pre_hook(keep_back_state),
            self.register_load_state_dict_post_hook(load_share, prepend=True),
        ):
            super().load_state_dict(state_dict)

    def _load_share(self, state_dict: dict[str, Any]) -> None:
        own_state, own_groups, count = {}, [], 0
        for group, saved in zip(self.param_groups, state_dict["param_groups"], strict=True):
            saved_indices = dict(zip(group["params"], saved["params"], strict=True))
            own = self._own(group)
            own_groups.append({**hyperparameters(saved), "params": list(range(count, count + len(own)))})
            for index, parameter in enumerate(own, start=count):
                if saved_indices[parameter] in state_dict["state"]:
                    own_state[index] = state_dict["state"][saved_indices[parameter]]
            count += len(own)
        self._shard.load_state_dict({"state": own_state, "param_groups": own_groups})
        self.state = self._shard.state

    def __getstate__(self) -> NoReturn:
        """Refuse to be copied or pickled, because another rank could not use this rank's share.

        Raises TypeError.
        """
        raise TypeError(
            "a ShardedOptimizer holds one rank's share and cannot be copied or pickled: construct another one and load "
            "this one's state_dict(), called on every rank"
        )

    def _parameters(self) -> Iterator[Tensor]:
        for group in self.param_groups:
            yield from group["params"]


def _refuse_shards(parameters: Iterable[Tensor]) -> None:
    if any(map(is_shard, parameters)):
        raise ValueError("the parameters of an FSDP module are shards already: use optimizer_cls itself")
