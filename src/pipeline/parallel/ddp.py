"""Data-parallel training: the base class, and the two variants that communicate after the backward pass."""

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn import Parameter

from pipeline.parallel.reductions import Reduction, layout, one_for_each_dtype, one_for_each_parameter
from pipeline.parallel.replicas import (
    AveragingModule,
    broadcast_from_rank_0,
    check_same_on_all_ranks,
    describe,
    prepare_on_all_ranks,
    refuse_unfit,
    used_nowhere,
)

Plan = Callable[[list[Parameter]], list[Reduction]]

# Attributes that a copy of a wrapper recreates: buffers, running collectives.
NOT_COPIED = ("_reductions", "_order")


class ReplicatedModule(AveragingModule):
    """A module with the same weights on every rank, whose gradients are averaged over the ranks.

    A step is forward, backward, `finish_gradient_synchronization()`, optimizer, on every rank of the default process
    group. Construction copies parameters and buffers from rank 0; later each rank keeps its own buffers, such as
    running statistics. In addition to the gradients, a synchronisation sends one byte per parameter: whether it has a
    gradient. A gradient missing on some ranks counts as zeros there; one missing on all ranks stays None, so that the
    optimizer skips the parameter as it would in one process.

    Construction fixes which parameters are trained, their dtypes and devices. A copy (also by pickle or `torch.save`)
    wraps the copied module again, without gradients.

    Raises ValueError, on every rank, if the ranks' modules or reductions differ, if no parameter is trained, if one is
    not initialised or a shard of an FSDP module, or if an embedding makes sparse gradients.
    """

    def __init__(self, module: nn.Module, plan: Plan):
        super().__init__()
        self.module = module
        named_tensors = [*module.named_parameters(), *module.named_buffers()]
        prepare_on_all_ranks("parameters and buffers", partial(_checked, module))
        # A tied weight appears once. In reverse, because backward reaches the last layers first.
        self._trained = [parameter for parameter in module.parameters() if parameter.requires_grad][::-1]
        if not self._trained:
            raise ValueError("no parameter of the module requires a gradient")
        self._frozen = [parameter for parameter in module.parameters() if not parameter.requires_grad]
        self._names: dict[Tensor, str] = {parameter: name for name, parameter in module.named_parameters()}
        self._plan = plan
        self._prepare()
        check_same_on_all_ranks("ways to reduce", [type(self).__name__, *layout(self._reductions)])
        broadcast_from_rank_0(tensor for _, tensor in named_tensors)

    def _prepare(self) -> None:
        """Create the attributes that a copy must not share."""
        self._reductions = self._plan(self._trained)
        self._synchronises = True

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in NOT_COPIED}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._prepare()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module."""
        return self.module(*args, **kwargs)

    def finish_gradient_synchronization(self) -> None:
        """Average all gradients over the ranks, or wait for running all-reduces; call it after the backward pass.

        On a GPU the current stream waits, not the host, unless a parameter has no gradient.
        Raises RuntimeError inside `no_sync()`, and for gradients that cannot be averaged.
        """
        self._check_gradients(self._trained, self._frozen)
        for parameter in used_nowhere(self._trained, self._reduce_all()):
            parameter.grad = None

    def discard_gradients(self) -> None:
        """Drop all gradients to start over after a failed backward pass. A collective: every rank calls it."""
        self.zero_grad()

    def _launch_all(self) -> list[Parameter]:
        """Start all reductions that are not running yet; return the parameters without a gradient."""
        return [parameter for reduction in self._reductions for parameter in reduction.launch()]

    def _reduce_all(self) -> list[Parameter]:
        """Average all gradients; return the parameters that had none."""
        without = self._launch_all()
        for reduction in self._reductions:
            reduction.wait()
        return without


def _checked(module: nn.Module) -> list[str]:
    """Describe what the ranks must agree on; raises ValueError for a module that cannot be wrapped."""
    refuse_unfit(module)
    return describe([*module.named_parameters(), *module.named_buffers()])


class NaiveDDP(ReplicatedModule):
    """All-reduce the gradients one parameter at a time, after the backward pass."""

    def __init__(self, module: nn.Module):
        super().__init__(module, one_for_each_parameter)

    def _reduce_all(self) -> list[Parameter]:
        without = []
        for reduction in self._reductions:
            without += reduction.launch()
            reduction.wait()
        return without


class FlatDDP(ReplicatedModule):
    """All-reduce all gradients of a dtype as one flat buffer, after the backward pass.

    The gradients become views into the buffers, which live as long as the module: the next step overwrites gradients
    that were kept.
    """

    def __init__(self, module: nn.Module):
        super().__init__(module, one_for_each_dtype)
