"""Data-parallel training whose communication overlaps the backward pass."""

import weakref
from collections.abc import Callable
from functools import partial

from torch import Tensor, nn
from torch.nn import Parameter

from pipeline.parallel.ddp import ReplicatedModule
from pipeline.parallel.reductions import Reduction, in_buckets, one_for_each_parameter
from pipeline.parallel.replicas import refuse_sparse

CHANGED_TOO_LATE = (
    "a gradient changed after its all-reduce began: call finish_gradient_synchronization() after each backward pass, "
    "or run all passes but the last inside no_sync(); after a backward pass that failed, call discard_gradients() on "
    "every rank"
)


class LaunchOrder:
    """Launch reductions as soon as their gradients are ready, but always in the given order.

    Gradients may become ready in different orders on different ranks (another part of the module in use, another
    graph). Collectives that ranks start in different orders would mix up tensors or hang. So a reduction that waits for
    a gradient delays all later ones; if that gradient never comes, until `launch_rest()`.
    """

    def __init__(self, reductions: list[Reduction]):
        self._reductions = reductions
        self._start_over()

    def gradient_ready(self, position: int) -> None:
        """Count a gradient of the reduction at this position; launch every reduction that is now ready, in order.

        Raises RuntimeError if the reduction already has all its gradients: what is added now would be lost.
        """
        if self._awaited[position] == 0:
            raise RuntimeError(CHANGED_TOO_LATE)
        self._awaited[position] -= 1
        while self._next < len(self._reductions) and self._awaited[self._next] == 0:
            self._launch_next()

    def gradient_kept(self, position: int) -> None:
        """Keep a gradient for a later pass; raises RuntimeError if its reduction is already running."""
        if position < self._next:
            raise RuntimeError(CHANGED_TOO_LATE)

    def launch_rest(self) -> list[Parameter]:
        """Launch the remaining reductions, ready or not, and start over; return the parameters without a gradient."""
        while self._next < len(self._reductions):
            self._launch_next()
        without = self._without
        self._start_over()
        return without

    def _launch_next(self) -> None:
        self._without += self._reductions[self._next].launch()
        self._next += 1

    def _start_over(self) -> None:
        self._next = 0
        self._awaited = [len(reduction.parameters) for reduction in self._reductions]
        self._without: list[Parameter] = []


class OverlappedModule(ReplicatedModule):
    """A replicated module that starts each all-reduce from the hook of the last gradient that it needs.

    Only the last backward pass before `finish_gradient_synchronization()` runs outside `no_sync()`; another one after
    it raises RuntimeError. The hooks do not keep the module alive: once nothing else refers to it, they do nothing.

    On every rank all-reduces start in reverse order of the parameters, as backward is likely to reach them. A parameter
    without a gradient (unused, or frozen after wrapping) delays all earlier ones until the finish: if it is among the
    last of the module, almost nothing overlaps.
    """

    def _prepare(self) -> None:
        super()._prepare()
        self._order = LaunchOrder(self._reductions)
        for position, reduction in enumerate(self._reductions):
            for parameter in reduction.parameters:
                parameter.register_post_accumulate_grad_hook(self._hook(position))

    def discard_gradients(self) -> None:
        """Drop all gradients and running all-reduces to start over after a failed backward pass.

        A collective: every rank calls it, even if its own pass did not fail.
        """
        self.zero_grad()
        # Ranks may have failed at different points. An all-reduce ends only once all ranks have started it.
        self._reduce_all()
        self.zero_grad()

    def _hook(self, position: int) -> Callable[[Tensor], None]:
        # Python's garbage collector does not see a parameter's hooks. A hook that refers to its parameter, as this
        # module does, would never be freed, nor would the parameter.
        this = weakref.ref(self)

        def on_gradient(parameter: Tensor) -> None:
            module = this()
            if module is None:
                return
            refuse_sparse(parameter, module._names[parameter])
            if module._synchronises:
                module._order.gradient_ready(position)
            else:
                module._order.gradient_kept(position)

        return on_gradient

    def _launch_all(self) -> list[Parameter]:
        return self._order.launch_rest()


class OverlapDDP(OverlappedModule):
    """All-reduce each parameter's gradient by itself, as soon as it is ready."""

    def __init__(self, module: nn.Module):
        super().__init__(module, one_for_each_parameter)


class BucketedDDP(OverlappedModule):
    """All-reduce gradients in flat buckets, filled in reverse order of the parameters, each as soon as it is full.

    bucket_size_mb: the size of a bucket in units of 1024² bytes; a larger parameter has a bucket of its own. None means
    no limit: one bucket for all gradients of a dtype.
    The gradients become views into the buckets, which live as long as the module: the next step overwrites gradients
    that were kept. Raises ValueError if the size is not above 0.
    """

    def __init__(self, module: nn.Module, bucket_size_mb: float | None):
        size_mb = float("inf") if bucket_size_mb is None else bucket_size_mb
        if not size_mb > 0:
            raise ValueError(f"bucket_size_mb={size_mb}: must be above 0")
        super().__init__(module, partial(in_buckets, size_mb=size_mb))
