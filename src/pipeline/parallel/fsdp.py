"""Fully sharded data-parallel training (ZeRO stage 3, Rajbhandari et al. 2020; FSDP, Zhao et al. 2023)."""

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from pipeline.compat.torch_private import base_of, in_backward, next_node_number, node_number, tensors_in
from pipeline.parallel.fsdp_casts import cast_arguments, cast_replicated
from pipeline.parallel.fsdp_gathering import Gathering
from pipeline.parallel.fsdp_reduction import Scattering
from pipeline.parallel.fsdp_state import full_state, load_full_state
from pipeline.parallel.fsdp_units import Group, Rule, Unit, find_groups
from pipeline.parallel.lanes import lane
from pipeline.parallel.reductions import one_for_each_dtype
from pipeline.parallel.replicas import (
    AveragingModule,
    broadcast_from_rank_0,
    describe,
    prepare_on_all_ranks,
    refuse_unfit,
    used_nowhere,
)


class FSDP(AveragingModule):
    """Wrap a module so that each rank keeps only a shard of its large parameters, gradients and optimizer state.

        model = FSDP(model, compute_dtype=torch.bfloat16, shard=lambda module: isinstance(module, TransformerBlock))
        optimizer = torch.optim.AdamW(model.parameters())
        loss(model(tokens), targets).backward()
        model.finish_gradient_synchronization()
        optimizer.step()

    A *unit* is gathered before it is used, freed afterwards, and gathered again for its backward pass. While a unit
    computes, the next one is gathered, once the unit two before that one is done. Gradients are averaged and scattered
    as they become ready. By default each module with a 2-D `weight` (any Linear or Embedding) is a unit of that matrix
    only. With `shard`, the outermost modules for which it returns true are units, each with all of its parameters in
    one flat buffer: fewer and larger collectives. Modules that share a parameter form one unit. All other parameters
    are replicated, and their gradients are averaged after the backward pass.

    Between steps `parameters()` returns shards: ordinary 1-D parameters, some of them empty, in the original dtype.
    After `finish_gradient_synchronization()` the gradients have the same form. Any elementwise optimizer works;
    construct it after wrapping, and choose parameter groups by name, because shards lose their parameter's shape. A
    unit's module sees the full parameters only in its forward pass, and only gradients that flow through the tensors
    it returns are right: return an auxiliary loss, do not keep it in an attribute. There are no second derivatives.

    `clip_grad_norm_` clips by the gradients' norm over all ranks. Scale an fp16 loss with torch's `ShardedGradScaler`
    (`torch.distributed.fsdp.sharded_grad_scaler`): with `GradScaler` only ranks that see an infinity skip the step.

    compute_dtype: parameters and floating-point arguments are converted to it, and units communicate in it. Use it
    instead of autocast, which would keep copies of all weights. None: the dtype of the parameters.

    Every rank of the default process group constructs it with the whole module, whose values come from rank 0, and uses
    the same units in the same order. Checkpointed modules are gathered again for their recomputation. Compile a unit's
    `forward`, not the module itself, so that the hooks stay outside. Convert, move and freeze before wrapping.

    Raises ValueError, on every rank, if the ranks' modules or units differ, if there is nothing to shard, if a sharded
    parameter has gradient hooks or also belongs to a module that is not sharded, if a parameter is a shard already or
    not initialised, or if an embedding makes sparse gradients.
    """

    def __init__(self, module: nn.Module, compute_dtype: torch.dtype | None = None, shard: Rule | None = None):
        super().__init__()
        self.module, self._compute_dtype = module, compute_dtype
        groups = self._agree_on_groups(shard)
        broadcast_from_rank_0([*module.parameters(), *module.buffers()])
        names = {parameter: name for name, parameter in module.named_parameters()}
        self._units = [Unit(group, names, compute_dtype) for group in groups]
        self._flats = [flat for unit in self._units for flat in unit.flats]
        sharded = {entry for flat in self._flats for entry in flat.shards}
        self._replicated = [entry for entry in module.parameters() if entry not in sharded]
        self._names = {parameter: name for name, parameter in module.named_parameters()}
        self._averaged = [entry for entry in self._replicated if entry.requires_grad]
        self._frozen = [entry for entry in self._replicated if not entry.requires_grad]
        self._reductions = one_for_each_dtype(self._averaged)
        trained = (flat for flat in self._flats if flat.is_trained)
        self._maybe_unused = [*self._averaged, *(shard for flat in trained for shard in flat.shards)]
        device = self._flats[0].piece.device
        self._lanes = lane(device), lane(device)
        self._gathering = Gathering(self._units, self._lanes[0], device)
        self._scattering = Scattering(self._lanes[1])
        self._in_backward: Unit | None = None
        self._add_hooks()

    def _agree_on_groups(self, shard: Rule | None) -> list[Group]:
        groups: list[Group] = []

        def find() -> list[str]:
            refuse_unfit(self.module)
            groups.extend(find_groups(self.module, shard))
            tensors = [*self.module.named_parameters(), *self.module.named_buffers()]
            units = (f"a unit of {[tuple(entry.shape) for entry in group.members]}" for group in groups)
            return [f"compute_dtype={self._compute_dtype}", *describe(tensors), *units]

        prepare_on_all_ranks("modules", find)
        return groups

    def _add_hooks(self) -> None:
        for unit in self._units:
            for module in unit.modules:
                # Around the user's hooks from before wrapping, which may use the parameters.
                module.register_forward_pre_hook(partial(self._before_forward, unit), prepend=True, with_kwargs=True)
                module.register_forward_hook(partial(self._after_forward, unit), always_call=True)
        if self._compute_dtype is not None:
            cast_replicated(self.module.modules(), set(self._replicated), self._compute_dtype)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module.

        Raises RuntimeError if a sharded parameter was converted, moved, frozen, unfrozen or given a gradient hook after
        wrapping.
        """
        for flat in self._flats:
            flat.check_unchanged()
        if self._compute_dtype is not None:
            args, kwargs = cast_arguments(args, kwargs, self._compute_dtype)
        if not in_backward():
            for unit in self._units:
                unit.forwards.clear()  # left by an interrupted pass, after which torch calls no hooks
        for each in self._lanes:
            each.begin()
        self._gathering.begin()
        self._in_backward = None
        try:
            return self.module(*args, **kwargs)
        finally:
            if not torch.is_grad_enabled():
                self._gathering.end()

    def finish_gradient_synchronization(self) -> None:
        """Send the remaining gradients, wait for all, and free the buffers. Call it after the backward pass.

        Without it, shards have no valid gradients. A gradient missing on some ranks counts as zeros there; one missing
        on all ranks stays None. On a GPU the current stream waits, not the host, unless a gradient is missing.
        Raises RuntimeError inside `no_sync()`, for a sparse gradient, and if a parameter frozen when wrapped has one.
        """
        self._check_gradients(self._averaged, self._frozen)
        self._in_backward = None
        without: list[Tensor] = [*self._scattering.finish(self._units)]
        for unit in self._units:
            unit.awaited.clear()
        for reduction in self._reductions:
            without += reduction.launch()
        for reduction in self._reductions:
            reduction.wait()
        for parameter in used_nowhere(self._maybe_unused, without):
            parameter.grad = None
        self._gathering.end()

    def discard_gradients(self) -> None:
        """Drop all gradients, to start over after a backward pass that failed on every rank."""
        self._gathering.end()
        self._in_backward = None
        self.zero_grad()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop all gradients, or set them to zero; also those of passes inside `no_sync()`, which no optimizer sees."""
        self._scattering.discard()
        for unit in self._units:
            unit.drop_gradients()
        super().zero_grad(set_to_none)

    @torch.no_grad()
    def clip_grad_norm_(self, max_norm: float) -> Tensor:
        """Scale all gradients so that their 2-norm over all ranks is at most `max_norm`; return the unclipped norm.

        A collective, to be called after `finish_gradient_synchronization()`. `torch.nn.utils.clip_grad_norm_` would
        use a different norm on each rank, that of its own shards.
        """
        replicated = [entry.grad for entry in self._replicated if entry.grad is not None]
        sharded = [shard.grad for flat in self._flats for shard in flat.shards if shard.grad is not None]
        device = self._flats[0].piece.device
        squares = [get_total_norm(gradients).to(device).square() for gradients in (replicated, sharded)]
        dist.all_reduce(squares[1])
        norm = (squares[0] + squares[1]).sqrt()
        clip_grads_with_norm_(self.parameters(), max_norm, norm)
        return norm

    def full_state_dict(self, device: torch.device | str | None = None) -> dict[str, Any]:
        """Return a copy of the wrapped module's state dict with full parameters, on every rank. A collective.

        Names are the module's own, without the prefix `module.`. device: where to put the tensors; None leaves them on
        the parameters' device, "cpu" needs only one unit's memory on that device.
        """
        return full_state(self.module, self._flats, device)

    def load_full_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state dict of the unwrapped module: each rank copies its shards from the full tensors. A collective.

        Raises ValueError, on every rank, for names or shapes that differ from the module's.
        """
        self._gathering.end()
        load_full_state(self.module, self._flats, state)

    def _before_forward(self, unit: Unit, module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
        unit.forwards.append(next_node_number())
        self._gathering.use(unit)
        return None if self._compute_dtype is None else cast_arguments(args, kwargs, self._compute_dtype)

    def _after_forward(self, unit: Unit, module: nn.Module, args: tuple, output: Any) -> None:
        # Also called after an exception, because checkpoints end a recomputation with one.
        first_node = unit.forwards.pop()
        if not unit.forwards and not in_backward():
            unit.show(full=False)
        if torch.is_grad_enabled():
            for tensor in dict.fromkeys(map(_source, [output] if isinstance(output, Tensor) else _tensors_in(output))):
                # An input that the module returns unchanged belongs to another module's backward pass.
                if tensor.grad_fn is not None and node_number(tensor.grad_fn) >= first_node:
                    tensor.register_hook(partial(self._before_backward, unit, first_node))
                    if not in_backward():  # else a checkpoint may be recomputing it, and no gradients come through it
                        unit.awaited.add(first_node)

    def _before_backward(self, unit: Unit, first_node: int, _: Tensor) -> None:
        if torch.is_grad_enabled():
            raise RuntimeError("FSDP cannot go backward with create_graph=True: it has no second derivatives")
        if self._in_backward is None:
            self._scattering.refuse_unfinished()
        if not unit.went_backward:
            unit.refuse_gradients()
        self._gathering.use(unit)
        unit.awaited.discard(first_node)
        before, self._in_backward, unit.went_backward = self._in_backward, unit, True
        # Autograd runs a backward pass in the reverse order of the forward pass: the unit before this one is done.
        # Parameter hooks would tell the same, but cost a call each. If a unit was used several times, its gradients
        # are complete after its first use, which goes backward last.
        if before is not None and before is not unit and self._synchronises and not before.awaited:
            self._scattering.send(before)

    def __getstate__(self) -> NoReturn:
        """Refuse to be copied or pickled, because another process could not use this rank's shards.

        Raises TypeError.
        """
        raise TypeError("an FSDP module holds one rank's shards and cannot be copied or pickled: use full_state_dict()")


def _tensors_in(output: Any) -> list[Tensor]:
    """Return the tensors in a dataclass, or in nested lists, tuples and dictionaries."""
    if dataclasses.is_dataclass(output):  # a leaf to torch's pytrees, unless it is registered
        return [tensor for field in dataclasses.fields(output) for tensor in _tensors_in(getattr(output, field.name))]
    return tensors_in(output)


def _source(tensor: Tensor) -> Tensor:
    """Return a tensor through which this one's gradients flow even if this one is changed in place later.

    A view that is changed in place loses its hooks; its base does not.
    """
    base = base_of(tensor)
    return tensor if tensor.grad_fn is None or base.grad_fn is None else base
