"""What fully sharded training of the transformer holds: its units, and the peak of a training step."""

from dataclasses import replace

from pipeline.formulas.activations import Workload
from pipeline.formulas.fsdp import FlatLayout, FsdpPlan, flat_layout
from pipeline.formulas.parameters import attention_matrices, feed_forward_matrices, head_matrix_elements
from pipeline.formulas.peak_memory import backward_moments, forward_moments
from pipeline.formulas.sizes import ModelSize
from pipeline.formulas.training_state import ADAMW_MOMENTS
from pipeline.formulas.units import BF16_BYTES, FP32_BYTES


def sharded_by_block(size: ModelSize, vocab_size: int, world_size: int, compute_itemsize: int) -> FsdpPlan:
    """Plan units of whole blocks, the embedding and the head; the last norm is replicated."""
    d = size.d_model
    block = flat_layout([d, *attention_matrices(size), d, *feed_forward_matrices(size)], world_size)
    units = _between_ends([block] * size.num_layers, size, vocab_size)
    return FsdpPlan(units, d, FP32_BYTES, compute_itemsize, size.tie_embeddings)


def sharded_by_layer(size: ModelSize, vocab_size: int, world_size: int, compute_itemsize: int) -> FsdpPlan:
    """Plan units of single matrices; all norms are replicated."""
    matrices = (*attention_matrices(size), *feed_forward_matrices(size))
    block: list[FlatLayout] = [flat_layout([elements], world_size) for elements in matrices]
    norms = (2 * size.num_layers + 1) * size.d_model
    units = _between_ends(block * size.num_layers, size, vocab_size)
    return FsdpPlan(units, norms, FP32_BYTES, compute_itemsize, size.tie_embeddings)


def _between_ends(layers: list[FlatLayout], size: ModelSize, vocab_size: int) -> tuple[FlatLayout, ...]:
    """Put the embedding before and the head after units of layers; tied, they are one unit, the first."""
    end = flat_layout([head_matrix_elements(size, vocab_size)], layers[0].world_size)
    return (end, *layers, *([] if size.tie_embeddings else [end]))


def moments_bytes(plan: FsdpPlan) -> int:
    """Count AdamW's two moments on the fullest rank, which it keeps for parameters alone, not for padding."""
    return ADAMW_MOMENTS * plan.itemsize * plan.own_elements


def peak_bytes(workload: Workload, plan: FsdpPlan) -> int:
    """Predict the peak of a warm step with AdamW on CUDA, with the moments of `pipeline.formulas.peak_memory`.

    Forward and backward pass: shards, both moments, the two gathered units, activations and temporaries as without
    sharding, and of the gradients so far a share; but those of a block, and of the one before it, are there in full,
    and so is that of a tied head, which waits for the embedding's. Optimizer: shards, gradients, both moments, and the
    square roots of the second. The largest is the peak.
    """
    seen = replace(workload, has_bf16_weights=plan.compute_itemsize == BF16_BYTES)
    state = plan.persistent_bytes + moments_bytes(plan)
    world_size = plan.units[0].world_size
    layers = plan.units[1:] if plan.is_tied else plan.units[1:-1]
    tied = plan.units[0].elements if plan.is_tied else 0
    in_full = plan.compute_itemsize * (2 * max(unit.elements for unit in layers) + tied)
    peaks = [state + plan.gradient_bytes + moments_bytes(plan) // ADAMW_MOMENTS]
    for moment in (*forward_moments(seen, optimizer_state=0), *backward_moments(seen, optimizer_state=0)):
        counts = moment.bytes_by_category
        sent = (counts["gradients"] - FP32_BYTES * tied) // world_size
        gradients = sent + in_full if counts["gradients"] else 0
        others = counts["activations"] + counts["temporaries"] + counts["other"]
        peaks.append(state + plan.gathered_bytes + others + gradients)
    return max(peaks)
