"""How far the weights of two models, or of one model's ranks, are apart after the same training steps."""

import torch.distributed as dist
from torch import Tensor, nn

from pipeline.instruments.rank_timing import max_over_ranks

# Largest difference that rounding may make between ways to average gradients, by precision. Two ranks have one sum and
# no order; with more, AdamW passes the rounding of small gradients on to the weights, and bf16 products carry it on.
TOLERANCE = {"fp32": 1e-5, "bf16": 1e-3}


def copy_to_host(model: nn.Module) -> list[Tensor]:
    """Copy the weights to the CPU."""
    return [weight.detach().cpu().clone() for weight in model.parameters()]


def difference_from(model: nn.Module, reference: list[Tensor]) -> float:
    """Return the largest absolute difference of any weight from a copy made by `copy_to_host`."""
    pairs = zip(model.parameters(), reference, strict=True)
    return max(_largest_difference(weight, other) for weight, other in pairs)


def difference_between_ranks(model: nn.Module) -> float:
    """Return the largest absolute difference of any weight from rank 0's, over all ranks; every rank calls it."""
    largest = 0.0
    for weight in model.parameters():
        first = weight.detach().clone()
        dist.broadcast(first, src=0)
        largest = max(largest, _largest_difference(weight, first))
    return max_over_ranks({"difference": largest}, weight.device)["difference"]


def _largest_difference(weight: Tensor, other: Tensor) -> float:
    return (weight.detach() - other.to(weight.device)).abs().max().item()
