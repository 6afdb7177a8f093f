"""What each fusion buys: the step of one sharded model, measured again with one more of them each time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median

import torch

from pipeline.attention import ATTENTION, AttentionFunction
from pipeline.instruments.memory.rank_memory import peak_bytes_over_ranks, reset_peak
from pipeline.instruments.sampling.rank_timing import STEP, time_steps_over_ranks
from pipeline.model.fused.operations import Operations, in_torch, in_triton
from pipeline.stages.step8b.cell import FUSIONS
from pipeline.stages.step8b.models import Training

# What each fusion replaces of torch's operations.
FIELDS = {
    "rms_norm": ("rms_norm", "rms_norm_backward"),
    "rotary": ("rotate",),
    "swiglu": ("swiglu", "swiglu_backward"),
    "loss": ("cross_entropy", "scale"),
}


@dataclass(frozen=True)
class Measured:
    """The median step with the fusions up to one, over the ranks, and the fullest rank's peak; None on a CPU."""

    fusion: str
    step_ms: float
    peak_bytes: int | None


def measure_fusions(training: Training, device: torch.device, steps: int, levels: Sequence[str]) -> list[Measured]:
    """Time the step without fusions, then with one more at a time, each after a step that warms it up.

    levels: what the layers keep meanwhile. The last one, what is kept beyond that, is not among them. Afterwards the
    model computes as it did before.
    """
    assert training.fused is not None
    fused, block = training.fused, training.fused.blocks[0]
    before, kept = (block.operations, block.attention_function), [each.keeps for each in fused.blocks]
    fused.keep(levels)
    found = []
    for fusion, operations, attention in _ladder(device):
        fused.use(operations, attention)
        training.run()
        reset_peak(device)
        sampling = time_steps_over_ranks({"run": training.run}, device, 0, steps)
        found.append(Measured(fusion, median(sampling.timings[STEP].host_ms), peak_bytes_over_ranks(device)))
    fused.use(*before)
    fused.keep(kept)
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
