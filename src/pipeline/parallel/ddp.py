"""Data-parallel training: the common base, and the two ways that communicate after the backward pass."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import Parameter

from pipeline.parallel.reductions import Reduction, layout, one_for_each_dtype, one_for_each_parameter
from pipeline.parallel.replicas import broadcast_from_rank_0, check_same_on_all_ranks, describe

Plan = Callable[[list[Parameter]], list[Reduction]]

# Attributes of a wrapper that a copy of it makes anew: buffers, collectives under way, hooks.
NOT_COPIED = ("_reductions", "_order", "_hooks")


class ReplicatedModule(nn.Module):
    """A module with the same weights on every rank, whose gradients are averaged over the ranks.

    A step is forward, backward, `finish_gradient_synchronization()`, optimizer, on every rank of the default process
    group. Construction copies parameters and buffers from rank 0 (buffers only then: running statistics that a
    module keeps are each rank's own). Besides the gradients, a synchronisation sends one byte a parameter: which have
    a gradient at all. One that has none on some ranks counts as zeros there; one that has none on any rank is left
    without, so that an optimizer passes it over as it would in one process.

    Which parameters are trained, and of which dtype and on which device, is settled at construction. A copy, or what
    pickle and `torch.save` make of it, is wrapped anew around the copied module, without gradients.

    Raises ValueError, on every rank, where the ranks' modules or ways to reduce differ or no parameter is trained; and
    where an embedding is made for sparse gradients.
    """

    def __init__(self, module: nn.Module, plan: Plan):
        super().__init__()
        self.module = module
        named_tensors = [*module.named_parameters(), *module.named_buffers()]
        check_same_on_all_ranks("parameters and buffers", describe(named_tensors))
        # A tied weight comes once. Backward reaches the last layers first.
        self._trained = [parameter for parameter in module.parameters() if parameter.requires_grad][::-1]
        if not self._trained:
            raise ValueError("no parameter of the module requires a gradient")
        self._frozen = [parameter for parameter in module.parameters() if not parameter.requires_grad]
        self._names: dict[Tensor, str] = {parameter: name for name, parameter in module.named_parameters()}
        self._refuse_sparse_embeddings()
        self._plan = plan
        self._prepare()
        check_same_on_all_ranks("ways to reduce", [type(self).__name__, *layout(self._reductions)])
        broadcast_from_rank_0(tensor for _, tensor in named_tensors)

    def _refuse_sparse_embeddings(self) -> None:
        embeddings = (child for child in self.module.modules() if isinstance(child, nn.Embedding | nn.EmbeddingBag))
        sparse = {embedding.weight for embedding in embeddings if embedding.sparse}
        for parameter in self._trained:
            if parameter in sparse:
                raise ValueError(f"{self._names[parameter]}: sparse gradients (sparse=True) cannot be averaged")

    def _prepare(self) -> None:
        """Make what holds for this object alone, and no copy of it."""
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
        """Average all gradients over the ranks, or wait for what is under way; call it after the backward pass.

        On a GPU it is the current stream that waits, not the host, but where a parameter has no gradient.
        Raises RuntimeError inside `no_sync()`, and where a gradient is none that can be averaged.
        """
        if not self._synchronises:
            raise RuntimeError("finish_gradient_synchronization() inside no_sync()")
        self._check_gradients()
        for parameter in self._used_nowhere(self._reduce_all()):
            parameter.grad = None

    def discard_gradients(self) -> None:
        """Drop all gradients, to start over after a backward pass that failed. A collective: every rank calls it."""
        self.zero_grad()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Let backward passes add to each rank's own gradients; the next one outside averages the sums."""
        before = self._synchronises
        self._synchronises = False
        try:
            yield
        finally:
            self._synchronises = before

    def remove_hooks(self) -> None:
        """Take the hooks off the parameters; all the communication is then left to the finish."""

    def _check_gradients(self) -> None:
        """Raise RuntimeError where a parameter that was frozen at construction has a gradient, or any a sparse one."""
        for parameter in self._frozen:
            if parameter.grad is not None:
                raise RuntimeError(
                    f"{self._names[parameter]} has a gradient, but required none when the module was wrapped, so that "
                    "it would not be averaged: unfreeze parameters before the module is wrapped"
                )
        for parameter in self._trained:
            self._refuse_sparse(parameter)

    def _refuse_sparse(self, parameter: Tensor) -> None:
        """Raise RuntimeError where the parameter's gradient is sparse."""
        if parameter.grad is not None and parameter.grad.layout is not torch.strided:
            raise RuntimeError(f"{self._names[parameter]}: a sparse gradient cannot be averaged")

    def _launch_all(self) -> list[Parameter]:
        """Start the reductions that are not under way; return the parameters found without a gradient."""
        return [parameter for reduction in self._reductions for parameter in reduction.launch()]

    def _reduce_all(self) -> list[Parameter]:
        """Average all gradients; return the parameters that had none."""
        without = self._launch_all()
        for reduction in self._reductions:
            reduction.wait()
        return without

    def _used_nowhere(self, without: list[Parameter]) -> list[Parameter]:
        """Return those of the parameters without a gradient here that have none on any rank."""
        device = self._trained[0].device
        if not without:
            # Others may ask. Nothing is read, so that the host need not wait for the GPU.
            dist.all_reduce(torch.ones(len(self._trained), dtype=torch.uint8, device=device), dist.ReduceOp.MAX)
            return []
        absent = set(without)
        used = torch.tensor([parameter not in absent for parameter in self._trained], dtype=torch.uint8, device=device)
        dist.all_reduce(used, dist.ReduceOp.MAX)
        return [parameter for parameter, use in zip(self._trained, used.tolist(), strict=True) if not use]


class NaiveDDP(ReplicatedModule):
    """All-reduce the gradient of one parameter after the other, after the backward pass."""

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

    The gradients become views into the buffers, which live as long as the module: a gradient kept over a step is
    overwritten by the next.
    """

    def __init__(self, module: nn.Module):
        super().__init__(module, one_for_each_dtype)
