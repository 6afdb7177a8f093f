"""How far the weights of two models, or of one model's ranks, are apart after the same training steps."""

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pipeline.instruments.sampling.rank_timing import max_over_ranks

# Largest difference that rounding may make between ways to average gradients, by precision. Two ranks have one sum and
# no order; with more, AdamW passes the rounding of small gradients on to the weights, and bf16 products carry it on.
TOLERANCE = {"fp32": 1e-5, "bf16": 1e-3}
# A whole copy of a large model takes seconds to the host and back, and on the device it would count as its memory.
SAMPLES_A_PARAMETER = 2**16


@torch.no_grad()
def sample(model: nn.Module) -> Tensor:
    """Copy weights of every parameter to the CPU, as one tensor: all of a small one, of a large one evenly spaced."""
    strides = [-(-weight.numel() // SAMPLES_A_PARAMETER) for weight in model.parameters()]
    pairs = zip(model.parameters(), strides, strict=True)
    return torch.cat([weight.flatten()[::stride] for weight, stride in pairs]).cpu()


def difference_from(model: nn.Module, reference: Tensor) -> float:
    """Return the largest absolute difference of a weight from those sampled of another model by `sample`."""
    return (sample(model) - reference).abs().max().item()


@torch.no_grad()
def difference_between_ranks(model: nn.Module) -> float:
    """Return the largest absolute difference of any weight from rank 0's, over all ranks; every rank calls it."""
    largest = []
    for weight in model.parameters():
        first = weight.clone()
        dist.broadcast(first, src=0)
        largest.append((weight - first).abs().max())
    # Read once: to read each would have the host wait for the device each time.
    return max_over_ranks({"difference": torch.stack(largest).max().item()}, weight.device)["difference"]
