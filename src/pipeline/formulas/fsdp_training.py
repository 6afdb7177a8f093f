"""Fully sharded training of the transformer: its units, and the peak memory of a training step."""

from dataclasses import replace

from pipeline.formulas.activations import Workload
from pipeline.formulas.fsdp import FsdpPlan, flat_layout
from pipeline.formulas.parameters import attention_matrices, feed_forward_matrices, head_matrix_elements
from pipeline.formulas.peak_memory import backward_moments, forward_moments
from pipeline.formulas.sizes import ModelSize
from pipeline.formulas.training_state import ADAMW_MOMENTS
from pipeline.formulas.units import BF16_BYTES, FP32_BYTES


def sharded_by_block(size: ModelSize, vocab_size: int, world_size: int, compute_itemsize: int) -> FsdpPlan:
    """Plan units of whole blocks, the embedding and the head; the last norm is replicated."""
    d = size.d_model
    block = [d, *attention_matrices(size), d, *feed_forward_matrices(size)]
    return _plan([block], d, size, vocab_size, world_size, compute_itemsize)


def sharded_by_layer(size: ModelSize, vocab_size: int, world_size: int, compute_itemsize: int) -> FsdpPlan:
    """Plan units of single matrices; all norms are replicated."""
    matrices = [[elements] for elements in (*attention_matrices(size), *feed_forward_matrices(size))]
    norms = (2 * size.num_layers + 1) * size.d_model
    return _plan(matrices, norms, size, vocab_size, world_size, compute_itemsize)


def _plan(
    units: list[list[int]], replicated: int, size: ModelSize, vocab_size: int, world_size: int, compute_itemsize: int
) -> FsdpPlan:
    """Put the embedding before and the head after the units of all blocks; if tied, they are one unit, the first."""
    end = flat_layout([head_matrix_elements(size, vocab_size)], world_size)
    layers = [flat_layout(sizes, world_size) for sizes in units] * size.num_layers
    layouts = (end, *layers, *([] if size.tie_embeddings else [end]))
    return FsdpPlan(layouts, replicated, FP32_BYTES, compute_itemsize, size.tie_embeddings)


def peak_bytes(workload: Workload, plan: FsdpPlan) -> int:
    """Predict the peak bytes of a warm step with AdamW on CUDA, over the instants in `pipeline.formulas.peak_memory`.

    Forward and backward pass: shards, AdamW's moments, the two gathered units, activations and temporaries as without
    sharding, and a share of the gradients so far; but the gradients of two units are there in full, and so is that of a
    tied head, which waits for the embedding's. Optimizer: shards, gradients, both moments and the square roots of the
    second. The largest is the peak.
    """
    seen = replace(workload, has_bf16_weights=plan.compute_itemsize == BF16_BYTES)
    state = plan.persistent_bytes + plan.moments_bytes
    world_size = plan.units[0].world_size
    layers = plan.units[1:] if plan.is_tied else plan.units[1:-1]
    tied = plan.units[0].elements if plan.is_tied else 0
    in_full = plan.compute_itemsize * (2 * max(unit.elements for unit in layers) + tied)
    peaks = [state + plan.gradient_bytes + plan.moments_bytes // ADAMW_MOMENTS]
    for moment in (*forward_moments(seen), *backward_moments(seen)):
        counts = moment.bytes_by_category
        sent = (counts["gradients"] - FP32_BYTES * tied) // world_size
        gradients = sent + in_full if counts["gradients"] else 0
        others = counts["activations"] + counts["temporaries"] + counts["other"]
        peaks.append(state + plan.gathered_bytes + others + gradients)
    return max(peaks)
