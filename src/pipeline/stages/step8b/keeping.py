"""Choose by formula what layers keep for the backward pass, given the GPUs' memory, before anything is built."""

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from pipeline.errors import Skipped
from pipeline.formulas.fused_step import LEVELS, FusedStep
from pipeline.formulas.sizes import SIZES
from pipeline.formulas.units import BF16_BYTES
from pipeline.instruments.sampling.rank_timing import max_over_ranks
from pipeline.stages.step8b.cell import KEEPING_COLUMNS, OURS, SELECTIVE, Cell, Settings

# Torch's operations hold each logit several times, in bf16 and fp32: 16 bytes at the peak. Ours hold it once, in bf16.
TORCH_LOGIT_BYTES = 16


@dataclass(frozen=True)
class Keeping:
    """What each layer keeps, empty if not ours; the memory that a step then needs by formula, and what a GPU has.

    beside_fusions: what each keeps while fusions are measured, also with torch's operations; None if nothing fits.
    """

    levels: list[str]
    beside_fusions: list[str] | None
    needs_bytes: int | None = None
    has_bytes: int | None = None

    @property
    def columns(self) -> dict[str, Any]:
        """The columns for the row of the whole step."""
        memory = {"needs_bytes": self.needs_bytes, "has_bytes": self.has_bytes}
        counts = {column: self.levels.count(level) for level, column in KEEPING_COLUMNS.items()}
        return memory | (counts if self.levels else {})


def choose(impl: str, cell: Cell, settings: Settings, device: torch.device) -> Keeping:
    """Choose what layers keep so that it fits into the memory of the fullest GPU. A collective.

    Raises Skipped if a step does not fit even when each layer keeps only its input, or what torch's checkpoints keep.
    """
    logits = min(settings.loss_chunk, cell.context_length) * settings.vocab_size
    fused, with_torch = (
        FusedStep(SIZES[cell.size], settings.vocab_size, cell.context_length, cell.world_size, each * logits)
        for each in (BF16_BYTES, TORCH_LOGIT_BYTES)
    )
    # Torch's FSDP gathers a unit into one buffer and copies it into another.
    gathered_twice = fused.plan.gathered_bytes if impl == "ours_fully_shard" else 0
    has = available_bytes(device, settings.free_share)
    step, least = fused if impl in OURS else with_torch, "attention" if impl in SELECTIVE else LEVELS[0]
    levels = [least] * step.size.num_layers
    if impl in OURS:
        levels = step.levels_within(has - gathered_twice) or levels
    needs = step.peak_bytes(levels) + gathered_twice
    if needs > has:
        raise Skipped(f"a step needs {needs / 1e9:.1f} GB a GPU at the least, {has / 1e9:.1f} GB are free")
    beside_fusions = with_torch.levels_within(has, "qkv")
    memory = {} if device.type != "cuda" else {"needs_bytes": needs, "has_bytes": int(has)}
    return Keeping(levels if impl in OURS else [], beside_fusions, **memory)


def available_bytes(device: torch.device, free_share: float) -> float:
    """Return the free memory of the fullest rank's GPU, less a share of its total; infinite on a CPU. A collective."""
    if device.type != "cuda":
        return math.inf
    dist.barrier()  # NCCL allocates its memory here
    free, total = torch.cuda.mem_get_info(device)
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return -max_over_ranks({"": free_share * total - free - unused}, device)[""]
