"""An optimizer whose state is shared out over the ranks (ZeRO stage 1, Rajbhandari et al. 2020, section 5.1)."""

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
from pipeline.parallel.replicas import prepare_on_all_ranks


class ShardedOptimizer(Optimizer):
    """Let each rank update, and keep the state of, its share of the parameters; then broadcast what it updated.

    Whole parameters are shared out, the largest first, each to the rank with the fewest elements so far; every rank
    computes the same partition. It stands in for `optimizer_cls(params, **kwargs)` wherever the update of a
    parameter depends on no other parameter (SGD, Adam, AdamW, ...; not L-BFGS). `state` holds this rank's share.
    Every rank must hold the same parameters and gradients, as data-parallel training sees to. A step broadcasts each
    parameter that is trained, or was before, once from its owner: of P bytes in all, a rank with a share of p sends p
    and receives P − p.

    params: parameters, or parameter groups, as any `torch.optim.Optimizer` takes them.
    Construction, `add_param_group`, `step` and `state_dict` are collectives of the default process group. Raises
    ValueError, on every rank, where the ranks' groups differ or some ranks cannot make theirs; what `optimizer_cls`
    raises where all cannot.
    """

    def __init__(self, params: Iterable, optimizer_cls: type[Optimizer], **kwargs: Any):
        self._partition = Partition.empty(dist.get_world_size())
        prepare_on_all_ranks("parameter groups", partial(self._construct, params, optimizer_cls, kwargs))
        self._sent: list[tuple[Tensor, int]] = []
        self._never_trained = list(self._partition.owners)

    def _construct(self, params: Iterable, optimizer_cls: type[Optimizer], kwargs: dict[str, Any]) -> list[str]:
        """Make the groups and the shard's optimizer, whose defaults they take on; return their description."""
        super().__init__(params, dict(kwargs))
        self._partition = self._partition.with_added(list(self._parameters()))
        self._shard: Optimizer = optimizer_cls([self._own_part(group) for group in self.param_groups], **kwargs)
        self.defaults = dict(self._shard.defaults)
        self.state = self._shard.state
        copy_hyperparameters(self._shard.param_groups, self.param_groups)
        described = [line for entry in enumerate(self.param_groups) for line in describe_group(*entry)]
        return [f"{len(self.param_groups)} groups for {optimizer_cls.__name__}", *described]

    @property
    def shard_elements(self) -> tuple[int, ...]:
        """The number of elements that each rank keeps state for: of the parameters trained when they were added."""
        return self._partition.trained_elements

    def owner(self, parameter: Tensor) -> int:
        """Return the rank that updates a parameter."""
        return self._partition.owners[parameter]

    def add_param_group(self, param_group: Group) -> None:
        """Share out one more group of parameters, with hyperparameters of its own. A collective.

        Raises as construction does; the optimizer is then what it was.
        """
        if not hasattr(self, "_shard"):  # so Optimizer.__init__ adds the groups of the construction
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
        """Add a group, and its own part, which may be empty, to the shard's optimizer; return its description."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
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
        """Update the own share, then bring every parameter up to date on every rank. A collective.

        closure: computes the loss anew, its gradients synchronised over the ranks; its result is returned. Keywords go
        to the step of `optimizer_cls`.
        """
        # A scheduler, or the user, changes the hyperparameters outside a step; some optimizers do so in it.
        copy_hyperparameters(self.param_groups, self._shard.param_groups)
        loss = self._shard.step(closure and partial(self._evaluate, closure), **kwargs)
        copy_hyperparameters(self._shard.param_groups, self.param_groups)
        broadcast_from_owners(self._updated())
        return loss

    def _evaluate(self, closure: Callable[[], Any]) -> Any:
        """Call the closure; between the parts of a step it finds and may change the hyperparameters."""
        copy_hyperparameters(self._shard.param_groups, self.param_groups)
        loss = closure()
        copy_hyperparameters(self.param_groups, self._shard.param_groups)
        return loss

    def _updated(self) -> list[tuple[Tensor, int]]:
        """Return the parameters that a step may have changed, and their owners, in the same order on every rank."""
        # An optimizer goes by the gradient, which a parameter may keep when it is frozen. So what has been trained once
        # is always sent: another rank may have kept the gradient, and would wait for this one.
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

        # As the first of the hooks, so that those of the user find all state.
        with self.register_state_dict_post_hook(with_all_state, prepend=True):
            return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over hyperparameters, and the state of the own share, from the state dict of a plain optimizer.

        Raises ValueError where its groups are not of the sizes of these.
        """
        given: dict[str, Any] = {}

        def keep_back_state(_: Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
            given.update(state_dict)
            return {**state_dict, "state": {}}  # Optimizer would copy that of all parameters to their device

        def load_share(_: Optimizer) -> None:
            self._load_share(given)

        # Between the hooks of the user: the last that comes before loading, and the first after it.
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
        """Refuse to be copied or pickled: what other ranks would make of a rank's share is wrong.

        Raises TypeError.
        """
        raise TypeError(
            "a ShardedOptimizer holds one rank's share and cannot be copied or pickled: construct another and load "
            "state_dict() of this one, which is called on every rank"
        )

    def _parameters(self) -> Iterator[Tensor]:
        for group in self.param_groups:
            yield from group["params"]
