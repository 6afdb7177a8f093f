"""Check that every rank holds the same tensors, and which have gradients, before collectives rely on it."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parameter import is_lazy


def describe(named_tensors: Iterable[tuple[str, Tensor]]) -> list[str]:
    """Describe what the ranks must agree on: one line per tensor, in order."""
    return [
        f"{name}: {_form(tensor)}, {'trained' if tensor.requires_grad else 'frozen'}" for name, tensor in named_tensors
    ]


def mark_as_shard(parameter: Tensor) -> None:
    """Note that a parameter is a rank's part of another one, so that other ranks' values differ."""
    parameter.is_shard_of_fsdp = True  # type: ignore[attr-defined]


def is_shard(parameter: Tensor) -> bool:
    """Tell whether a parameter is a rank's part of another one."""
    return getattr(parameter, "is_shard_of_fsdp", False)


def refuse_unfit(module: nn.Module) -> None:
    """Raise ValueError for a module that cannot be wrapped.

    That is one with a parameter that is not initialised or a shard, or with a trained embedding that makes sparse
    gradients, which cannot be averaged.
    """
    for name, parameter in module.named_parameters():
        if is_lazy(parameter):
            raise ValueError(f"{name} is not initialised: run the module once before wrapping it")
        if is_shard(parameter):
            raise ValueError(f"{name} is a shard of an FSDP module: wrap a module once")
    names: dict[Tensor, str] = {parameter: name for name, parameter in module.named_parameters()}
    for child in module.modules():
        if isinstance(child, nn.Embedding | nn.EmbeddingBag) and child.sparse and child.weight.requires_grad:
            raise ValueError(f"{names[child.weight]}: sparse gradients (sparse=True) cannot be averaged")


class AveragingModule(nn.Module):
    """Base of wrappers that average gradients between the backward pass and the optimizer's step."""

    _synchronises = True
    _names: Mapping[Tensor, str]

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate gradients on each rank, without sending them; the next backward pass outside sends the sums."""
        before = self._synchronises
        self._synchronises = False
        try:
            yield
        finally:
            self._synchronises = before

    def _check_gradients(self, averaged: Iterable[Tensor], frozen: Iterable[Tensor]) -> None:
        """Raise RuntimeError inside `no_sync()`, for a sparse gradient, and for one of a parameter that was frozen."""
        if not self._synchronises:
            raise RuntimeError("finish_gradient_synchronization() inside no_sync()")
        for parameter in frozen:
            if parameter.grad is not None:
                raise RuntimeError(
                    f"{self._names[parameter]} was frozen when the module was wrapped, so its gradient would not be "
                    "averaged: unfreeze parameters before wrapping"
                )
        for parameter in averaged:
            refuse_sparse(parameter, self._names[parameter])


def refuse_sparse(parameter: Tensor, name: str) -> None:
    """Raise RuntimeError if the parameter's gradient is sparse."""
    if parameter.grad is not None and parameter.grad.layout is not torch.strided:
        raise RuntimeError(f"{name}: a sparse gradient cannot be averaged")


def used_nowhere(parameters: Sequence[Tensor], without: Sequence[Tensor]) -> list[Tensor]:
    """Return the parameters without a gradient on any rank; `without`: those without one here. A collective."""
    if not parameters:
        return []
    device = parameters[0].device
    if not without:
        # Other ranks may need this. The result is not read here, so the host need not wait for the GPU.
        dist.all_reduce(torch.ones(len(parameters), dtype=torch.uint8, device=device), dist.ReduceOp.MAX)
        return []
    absent = set(without)
    used = torch.tensor([parameter not in absent for parameter in parameters], dtype=torch.uint8, device=device)
    dist.all_reduce(used, dist.ReduceOp.MAX)
    return [parameter for parameter, use in zip(parameters, used.tolist(), strict=True) if not use]


def _form(tensor: Tensor) -> str:
    # A lazy module's tensor may have no shape yet on this rank; asking for it would raise on this rank alone.
    if is_lazy(tensor):
        return "not initialised"
    return f"{tensor.dtype}, shape {tuple(tensor.shape)}, strides {tensor.stride()}"


def check_same_on_all_ranks(what: str, own: list[str]) -> None:
    """Compare the lines of all ranks. A collective.

    Raises ValueError on every rank, so that none waits for another, if any rank's lines differ from rank 0's.
    """
    prepare_on_all_ranks(what, lambda: own)


def prepare_on_all_ranks(what: str, prepare: Callable[[], list[str]]) -> None:
    """Call `prepare`, which must not communicate, on every rank and compare the lines that it returns. A collective.

    If `prepare` raises on any rank, raises on every rank, so that none waits for another: the same exception if it is
    the same everywhere, else ValueError. Raises ValueError, too, if a rank's lines differ from rank 0's.
    """
    lines: list[str] = []
    error: Exception | None = None
    try:
        lines = prepare()
    except Exception as caught:
        error = caught
    failure = error and f"{type(error).__name__}: {error}"
    by_rank: list[tuple[str | None, list[str]]] = [(None, [])] * dist.get_world_size()
    dist.all_gather_object(by_rank, (failure, lines))
    failures, lines_by_rank = zip(*by_rank, strict=True)
    if error is not None and set(failures) == {failure}:
        raise error
    for rank, other_failure in enumerate(failures):
        if other_failure is not None:
            raise ValueError(f"{what}: rank {rank} raised {other_failure}") from error
    _compare(what, lines_by_rank)


def _compare(what: str, by_rank: tuple[list[str], ...]) -> None:
    for rank, lines in enumerate(by_rank):
        if lines != by_rank[0]:
            raise ValueError(f"{what} differ between ranks: {_first_difference(by_rank[0], rank, lines)}")


def _first_difference(reference: list[str], rank: int, lines: list[str]) -> str:
    for expected, actual in zip(reference, lines, strict=False):
        if expected != actual:
            return f"rank 0 has {expected!r}, rank {rank} has {actual!r}"
    return f"rank 0 has {len(reference)}, rank {rank} has {len(lines)}"


@torch.no_grad()
def broadcast_from_rank_0(tensors: Iterable[Tensor]) -> None:
    """Overwrite each tensor, in place, with rank 0's values. A collective."""
    for tensor in tensors:
        contiguous = tensor.detach().contiguous()
        dist.broadcast(memory_as_bytes(contiguous), src=0)
        if contiguous.data_ptr() != tensor.data_ptr():
            tensor.copy_(contiguous)


def memory_as_bytes(dense: Tensor) -> Tensor:
    """View the memory of a tensor without gaps as bytes, because gloo does not support every dtype."""
    # reshape(-1) would not do: a dimension of one element may have any stride, but view() needs 1 for the last.
    return dense.as_strided((dense.numel(),), (1,)).view(torch.uint8)
