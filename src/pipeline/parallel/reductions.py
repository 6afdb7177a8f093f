"""Average gradients over all ranks: one parameter's, or many as one flat buffer."""

from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Parameter

from pipeline.compat.torch_private import copy_all, storage_uses

BYTES_PER_MB = 1024**2


class Reduction(ABC):
    """One all-reduce of some parameters' gradients; `parameters` are in buffer order."""

    parameters: Sequence[Parameter]
    _work: dist.Work | None = None

    @abstractmethod
    def launch(self) -> list[Parameter]:
        """Start the all-reduce; return the parameters without a gradient, for which zeros are reduced."""

    def wait(self) -> None:
        """Wait for the means: a CUDA stream waits, the host only if the backend needs it."""
        assert self._work is not None, "wait() needs a launch() before it"
        self._work.wait()
        self._work = None

    def _start(self, tensor: Tensor) -> None:
        """Start an all-reduce that overwrites a contiguous tensor with the mean over all ranks."""
        if dist.get_backend() == dist.Backend.NCCL:
            self._work = dist.all_reduce(tensor, dist.ReduceOp.AVG, async_op=True)
            return
        # Gloo cannot average. Divide first, as NCCL does: in fp16 the sum might overflow.
        tensor.div_(dist.get_world_size())
        self._work = dist.all_reduce(tensor, dist.ReduceOp.SUM, async_op=True)


def held_by_others(gradient: Tensor) -> bool:
    """Tell whether anything else shares this tensor's storage and would see it overwritten.

    Autograd gives a gradient to a parameter without a copy if nothing else refers to the tensor. It may still be a view
    of a gradient that other operations have yet to read, or that is another parameter's too: for
    `x + bias.unsqueeze(0)` both inputs get the gradient of the sum, one of them as a view.
    """
    # Two uses are expected: the tensor, and the Python object made for its storage here.
    return storage_uses(gradient) > 2


class ParameterReduction(Reduction):
    """Reduce the gradient of one parameter in place, or a copy if its storage is shared."""

    def __init__(self, parameter: Parameter):
        self.parameters = (parameter,)

    @torch.no_grad()
    def launch(self) -> list[Parameter]:
        """Start the all-reduce; see `Reduction`."""
        (parameter,) = self.parameters
        # The gradient gets no local name: it would count as another use of its storage.
        without = [parameter] if parameter.grad is None else []
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter, memory_format=torch.contiguous_format)
        elif not parameter.grad.is_contiguous() or held_by_others(parameter.grad):
            parameter.grad = parameter.grad.clone(memory_format=torch.contiguous_format)
        self._start(parameter.grad)
        return without


class BucketReduction(Reduction):
    """Reduce the gradients of parameters of one dtype as one flat buffer, allocated once.

    From the launch on, the gradients are views into the buffer, so that nothing is copied back. A gradient that
    autograd allocated anew, as after `zero_grad(set_to_none=True)`, is copied in; a gradient that is still the view has
    accumulated in place. Copying is cheaper: it reads and writes each element once, while zeroing and accumulating read
    and write it twice.
    """

    def __init__(self, parameters: Sequence[Parameter]):
        self.parameters = parameters
        sizes = [parameter.numel() for parameter in parameters]
        self._buffer = torch.empty(sum(sizes), dtype=parameters[0].dtype, device=parameters[0].device)
        pieces = zip(self._buffer.split(sizes), parameters, strict=True)
        self._views = [piece.view(parameter.shape) for piece, parameter in pieces]

    @torch.no_grad()
    def launch(self) -> list[Parameter]:
        """Start the all-reduce; see `Reduction`. Raises RuntimeError if a parameter was converted or moved."""
        views, gradients, without = [], [], []
        for parameter, view in zip(self.parameters, self._views, strict=True):
            if (parameter.dtype, parameter.device) != (view.dtype, view.device):
                raise RuntimeError(
                    f"a parameter is {parameter.dtype} on {parameter.device}, its gradient buffer {view.dtype} on "
                    f"{view.device}: convert or move a module before wrapping it"
                )
            gradient = parameter.grad
            if gradient is view:
                continue
            if gradient is None:
                view.zero_()
                without.append(parameter)
            else:
                views.append(view)
                gradients.append(gradient)
            parameter.grad = view
        if views:
            copy_all(views, gradients)
        self._start(self._buffer)
        return without


def layout(reductions: Iterable[Reduction]) -> list[str]:
    """Describe what the ranks must agree on: one line per all-reduce, in order."""
    return [
        f"all-reduce of {sum(parameter.numel() for parameter in reduction.parameters)} elements"
        for reduction in reductions
    ]


def one_for_each_parameter(parameters: Iterable[Parameter]) -> list[Reduction]:
    """Reduce every parameter by itself, in the given order."""
    return [ParameterReduction(parameter) for parameter in parameters]


def one_for_each_dtype(parameters: Iterable[Parameter]) -> list[Reduction]:
    """Reduce all parameters of a dtype at once."""
    return in_buckets(parameters, size_mb=float("inf"))


def in_buckets(parameters: Iterable[Parameter], size_mb: float) -> list[Reduction]:
    """Fill buckets of at most `size_mb` (of 1024² bytes) in the given order, each of one dtype and device.

    A larger parameter has a bucket of its own. Buckets come in the order in which they fill.
    """
    buckets: list[list[Parameter]] = []
    filling: dict[tuple, list[Parameter]] = defaultdict(list)
    filled_bytes: Counter[tuple] = Counter()
    for parameter in parameters:
        kind = (parameter.dtype, parameter.device)
        if filling[kind] and filled_bytes[kind] + parameter.nbytes > size_mb * BYTES_PER_MB:
            buckets.append(filling.pop(kind))
            del filled_bytes[kind]
        filling[kind].append(parameter)
        filled_bytes[kind] += parameter.nbytes
    return [BucketReduction(bucket) for bucket in [*buckets, *filling.values()]]
