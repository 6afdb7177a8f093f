"""What the layers keep in the memory that the GPUs have, chosen by formula before anything is built."""

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
from pipeline.stages.step8b.cell import KEEPING_COLUMNS, OURS, Cell, Settings

# Torch's operations hold a logit in bf16 and up to four times in fp32, ours in bf16.
TORCH_LOGIT_BYTES = 16
KEPT_BY_TORCH = {"torch_eager": "input", "torch_compiled": "input", "torch_selective": "attention"}


@dataclass(frozen=True)
class Keeping:
    """What each layer keeps, if it is ours; by formula the memory that a step then needs, and what a GPU has.

    beside_fusions: what each keeps while fusions are measured, with torch's operations too; None where none fits.
    """

    levels: list[str]
    beside_fusions: list[str] | None
    needs_bytes: int | None = None
    has_bytes: int | None = None

    @property
    def columns(self) -> dict[str, Any]:
        """The columns of a whole step's row."""
        memory = {"needs_bytes": self.needs_bytes, "has_bytes": self.has_bytes}
        counts = {column: self.levels.count(level) for level, column in KEEPING_COLUMNS.items()}
        return memory | (counts if self.levels else {})


def choose(impl: str, cell: Cell, settings: Settings, device: torch.device) -> Keeping:
    """Let layers keep what fits into the memory of the fullest GPU. A collective.

    Raises Skipped where a step does not fit though every layer keeps its input alone, or what torch's checkpoints keep.
    """
    logits = min(settings.loss_chunk, cell.context_length) * settings.vocab_size
    fused, with_torch = (
        FusedStep(SIZES[cell.size], settings.vocab_size, cell.context_length, cell.world_size, each * logits)
        for each in (BF16_BYTES, TORCH_LOGIT_BYTES)
    )
    # Torch's FSDP gathers a unit into one buffer and copies it into another.
    gathered_twice = fused.plan.gathered_bytes if impl == "ours_fully_shard" else 0
    has = available_bytes(device, settings.free_share)
    step, least = (fused, LEVELS[0]) if impl in OURS else (with_torch, KEPT_BY_TORCH[impl])
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
    """Return what a GPU has free, on the fullest rank, but for a share of its memory. A collective."""
    if device.type != "cuda":
        return math.inf
    dist.barrier()  # for which NCCL takes its memory
    free, total = torch.cuda.mem_get_info(device)
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return -max_over_ranks({"": free_share * total - free - unused}, device)[""]
