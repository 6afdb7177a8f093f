"""What each fusion buys: the step of one sharded model, measured again with one more of them each time."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import median

import torch

from pipeline.attention import ATTENTION, AttentionFunction
from pipeline.formulas.sizes import ModelSize
from pipeline.instruments.sampling.rank_timing import STEP, max_over_ranks, time_steps_over_ranks
from pipeline.model.fused.operations import Operations, in_torch, in_triton
from pipeline.stages.step8b.cell import FUSIONS
from pipeline.stages.step8b.models import COMPUTE_DTYPE, Training

# What each fusion replaces of torch's operations.
FIELDS = {
    "rms_norm": ("rms_norm", "rms_norm_backward"),
    "rotary": ("rotate",),
    "swiglu": ("swiglu", "swiglu_backward"),
    "loss": ("cross_entropy",),
}


@dataclass(frozen=True)
class Measured:
    """The median step with the fusions up to one, over the ranks, and the fullest rank's peak; None on a CPU."""

    fusion: str
    step_ms: float
    peak_bytes: int | None


def measure_fusions(training: Training, device: torch.device, steps: int) -> list[Measured]:
    """Time the step without fusions, then with one more at a time, each after a step that warms it up.

    The last one, products that are kept, is not among them. Afterwards the model computes as it did before.
    """
    assert training.fused is not None
    fused, block = training.fused, training.fused.blocks[0]
    before, layers = (block.operations, block.attention_function), sum(each.keeps_products for each in fused.blocks)
    fused.keep(0)
    found = []
    for fusion, operations, attention in _ladder(device):
        fused.use(operations, attention)
        training.run()
        reset_peak(device)
        sampling = time_steps_over_ranks({"run": training.run}, device, 0, steps)
        found.append(Measured(fusion, median(sampling.timings[STEP].host_ms), peak_bytes(device)))
    fused.use(*before)
    fused.keep(layers)
    return found


def _ladder(device: torch.device) -> Iterator[tuple[str, Operations, AttentionFunction]]:
    operations = in_torch()
    yield FUSIONS[0], operations, ATTENTION["sdpa"]
    if device.type != "cuda":  # nor are there kernels of ours
        return
    yield "attention", operations, ATTENTION["flash"]
    for fusion, names in FIELDS.items():
        operations = replace(operations, **{name: getattr(in_triton(), name) for name in names})
        yield fusion, operations, ATTENTION["flash"]


def layers_that_fit(size: ModelSize, tokens: int, free_bytes: float) -> int:
    """Return how many layers can keep the products of gate and up in so many bytes.

    They are alive at the moment at which a step peaks in which no layer keeps them, between its forward and its
    backward pass: what is free beside that step's peak is theirs.
    """
    each = 2 * COMPUTE_DTYPE.itemsize * tokens * size.d_ff
    return int(min(size.num_layers, max(0.0, free_bytes / each)))


def free_bytes(device: torch.device, free_share: float) -> float:
    """Return what a GPU has free beside the peak so far, on the fullest rank, but for a share of its memory."""
    if device.type != "cuda":
        return math.inf
    free, total = torch.cuda.mem_get_info(device)
    unused = torch.cuda.memory_reserved(device) - torch.cuda.max_memory_allocated(device)
    return -max_over_ranks({"": free_share * total - free - unused}, device)[""]


def reset_peak(device: torch.device) -> None:
    """Begin the peak of a GPU's memory anew."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_bytes(device: torch.device) -> int | None:
    """Return the peak of the fullest rank's allocator; None on a CPU."""
    if device.type != "cuda":
        return None
    return int(max_over_ranks({"peak": float(torch.cuda.max_memory_allocated(device))}, device)["peak"])
