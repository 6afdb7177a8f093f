"""The peak memory of a forward pass or a training step, predicted in closed form.

Memory can peak at a few moments of a step; each is listed with what is alive then, and the highest is the peak.
Symbols as in `pipeline.formulas.activations`, and P the number of parameters.

Left out, because they depend on the device: workspaces of the matrix-product library (cuBLAS on an H200: 32 MiB for
each thread that multiplies, the calling one and autograd's), memory that the allocator rounds up or reserves, and the
CUDA context.
"""

from dataclasses import dataclass

from pipeline.formulas import temporaries
from pipeline.formulas.activations import (
    Workload,
    block_bytes,
    block_weight_copy_bytes,
    feed_forward_block_bytes,
    head_bytes,
    head_weight_copy_bytes,
    kept_attention_bytes,
    residual_stream_bytes,
    saved_bytes,
)
from pipeline.formulas.checkpointing import Rerun, reruns
from pipeline.formulas.parameters import (
    attention_matrices,
    block_parameter_count,
    feed_forward_matrices,
    head_matrix_elements,
    parameter_bytes,
)
from pipeline.formulas.sizes import SIZES
from pipeline.formulas.training_state import ADAMW_MOMENTS
from pipeline.formulas.units import FP32_BYTES, INT64_BYTES

CATEGORIES = ("parameters", "gradients", "optimizer_state", "activations", "temporaries", "other")
MODE_PHASES = {
    "inference": ("forward",),
    "forward": ("forward",),
    "train_step": ("forward", "backward", "optimizer"),
}


@dataclass(frozen=True)
class Moment:
    """One moment of a step: its phase, what is being computed, and the bytes alive by category."""

    phase: str
    what: str
    bytes_by_category: dict[str, int]

    @property
    def total_bytes(self) -> int:
        """All bytes alive."""
        return sum(self.bytes_by_category.values())


def predict_peaks(workload: Workload, mode: str, first_step: bool = False) -> dict[str, Moment]:
    """Return the moment with the most memory in each phase of a step.

    mode, one of MODE_PHASES: "inference" (the forward pass without gradients), "forward" (with gradients, so that
    activations are kept) or "train_step". `first_step`: AdamW creates its two moments at the end of the first step, so
    that the first forward and backward run without them.
    """
    if mode == "inference":
        moments = inference_moments(workload)
    else:
        moments = [*forward_moments(workload), *backward_moments(workload), optimizer_moment(workload)]
    if mode == "train_step" and not first_step:
        for moment in moments:
            moment.bytes_by_category["optimizer_state"] = _optimizer_state_bytes(workload)
    return {
        phase: max((moment for moment in moments if moment.phase == phase), key=lambda moment: moment.total_bytes)
        for phase in MODE_PHASES[mode]
    }


def peak_bytes(workload: Workload, mode: str) -> int:
    """Return the peak bytes of a warm step; `mode` as in `predict_peaks`."""
    return max(moment.total_bytes for moment in predict_peaks(workload, mode).values())


def cpu_step_bytes(size: str, vocab_size: int, batch_size: int, context_length: int, precision: str) -> int:
    """Return the peak bytes of a training step on a CPU; `size` is a name."""
    workload = Workload(SIZES[size], vocab_size, batch_size, context_length, precision, device_type="cpu")
    return peak_bytes(workload, "train_step")


def inference_moments(workload: Workload) -> list[Moment]:
    """List the moments of the forward pass without gradients: attention and SwiGLU of the last block, and the loss.

    Only x passes from block to block. Loss: the logits and their log-softmax in fp32 (8TV), under autocast the bf16
    logits too (10TV). Meanwhile autocast's weight copies accumulate.
    """
    copies = _all_blocks_copies(workload)
    log_softmax = FP32_BYTES * workload.tokens * workload.vocab_size
    at_loss = temporaries.logit_bytes(workload) + log_softmax + head_weight_copy_bytes(workload)
    passing = temporaries.passing_bytes(workload) | {"loss": at_loss}
    return [_moment(workload, "forward", what, temporaries=count + copies) for what, count in passing.items()]


def forward_moments(workload: Workload) -> list[Moment]:
    """List the moments of the forward pass with gradients, without optimizer state: the last block, and the loss.

    At the last block's softmax, everything that the blocks save is alive except the last feed-forward half, plus the
    scores and, under autocast on CUDA, their fp32 copy. With checkpointing a block runs as it does without gradients,
    while the checkpoints are alive. At the loss, everything saved is alive, plus the logits (4TV; under autocast 2TV
    and their fp32 copy) and, with checkpointing, the weight copies, which are cached until the pass ends.
    """
    saved = saved_bytes(workload)
    if workload.checkpoint_every:
        cached, kept = _all_blocks_copies(workload), _kept_at_last_block(workload)
        passing = temporaries.passing_bytes(workload)
    else:
        cached = 0
        kept = saved - feed_forward_block_bytes(workload) - head_bytes(workload) - head_weight_copy_bytes(workload)
        passing = {"attention": temporaries.beside_saved_scores_bytes(workload)}
    held = dict.fromkeys(passing, kept) | {"loss": saved}
    passing |= {"loss": temporaries.logit_bytes(workload)}
    return [
        _moment(workload, "forward", what, activations=held[what], temporaries=count + cached)
        for what, count in passing.items()
    ]


def backward_moments(workload: Workload) -> list[Moment]:
    """List the moments of the backward pass, without optimizer state: loss, SwiGLU and softmax of each segment's end.

    Loss: the gradients of the negative log-likelihood and of the log-softmax, 8TV, plus everything saved. Then, from
    the last segment to the first: what earlier segments saved, what this segment saved or recomputed, the gradients of
    all parameters after it, and the temporaries of the moment. Recursive checkpointing also reruns blocks that save
    nothing. Last the embedding: if it is tied, its gradient is added to the head's, in place if autocast has made a
    copy of the head.
    """
    saved = saved_bytes(workload)
    loss_gradients = 2 * FP32_BYTES * workload.tokens * workload.vocab_size
    counts = [("loss", {"activations": saved, "temporaries": loss_gradients})]
    for rerun in reruns(workload.size.num_layers, workload.checkpoint_every or 1, workload.checkpointing):
        counts += (_segment_counts if rerun.is_segment else _rerun_counts)(workload, rerun)
    at_embedding = residual_stream_bytes(workload)
    if workload.size.tie_embeddings:
        element = FP32_BYTES if workload.copies_for_products else 2 * workload.product_bytes
        at_embedding += element * head_matrix_elements(workload.size, workload.vocab_size)
    gradients = parameter_bytes(workload.size, workload.vocab_size)
    counts.append(("embedding", {"gradients": gradients, "temporaries": at_embedding}))
    return [_moment(workload, "backward", what, **each) for what, each in counts]


def optimizer_moment(workload: Workload) -> Moment:
    """Return the moment of AdamW's update: parameters, gradients, both moments, and the square roots of the second.

    On CUDA PyTorch updates all parameters together (foreach) and computes all roots at once: 4P. On a CPU it updates
    one parameter at a time: its root and quotient are alive together with the quotient of the one before, at most
    4 max(2Vd, 3df, 2dq + dk) bytes, where all query heads together have width q, and all key or value heads k.
    """
    size = workload.size
    roots = parameters = parameter_bytes(size, workload.vocab_size)
    if workload.device_type != "cuda":
        head, feed_forward = head_matrix_elements(size, workload.vocab_size), sum(feed_forward_matrices(size))
        roots = FP32_BYTES * max(2 * head, feed_forward, sum(attention_matrices(size)[:3]))
    state = {"optimizer_state": _optimizer_state_bytes(workload), "gradients": parameters, "temporaries": roots}
    return _moment(workload, "optimizer", "square roots of the second moments", **state)


_Counts = list[tuple[str, dict[str, int]]]


def _segment_counts(workload: Workload, rerun: Rerun) -> _Counts:
    """Count what is alive at SwiGLU and at the softmax of a segment's last block.

    At SwiGLU's product: its gradient and those of its two factors (3eTf); the product itself is freed. At the softmax:
    gradients of its output and input, and on CUDA a temporary; the feed-forward half is done. The gradients of the
    feed-forward matrices and of the output projection exist. The output projection's input and eager attention's v are
    freed. (`attention.peak_bytes` is the peak of attention alone, whose inputs stay alive.)
    """
    size, stream = workload.size, residual_stream_bytes(workload)
    kept = _kept_before(workload, rerun) + rerun.blocks * _recomputed_block_bytes(workload)
    gradients, hidden = _gradient_bytes_after(workload, rerun), workload.hidden_bytes
    at_swiglu = {
        "activations": kept - hidden,
        "gradients": gradients + FP32_BYTES * size.d_model * size.d_ff,
        "temporaries": 3 * hidden + stream,
    }
    matrices = sum(feed_forward_matrices(size)) + size.d_model * size.attention_width
    done = feed_forward_block_bytes(workload) + workload.heads_bytes * (1 if workload.is_fused else 2)
    done += workload.weight_copy_bytes(matrices)
    at_softmax = {
        "activations": kept - done,
        "gradients": gradients + FP32_BYTES * matrices,
        "temporaries": temporaries.attention_gradient_bytes(workload) + stream,
    }
    return [("SwiGLU", at_swiglu), ("attention", at_softmax)]


def _rerun_counts(workload: Workload, rerun: Rerun) -> _Counts:
    """Count what is alive when the last block of a rerun makes the next one's input, saving nothing.

    As in the forward pass, plus the gradient of the residual stream. Autocast's weight copies accumulate until the
    rerun ends.
    """
    stream = residual_stream_bytes(workload)
    # The first block's own input counts with what passes through a block.
    kept = _kept_before(workload, rerun) + (stream if rerun.blocks > 1 else 0)
    beside = rerun.blocks * block_weight_copy_bytes(workload) + stream
    always = {"activations": kept, "gradients": _gradient_bytes_after(workload, rerun)}
    passing = temporaries.passing_bytes(workload).items()
    return [(f"{what} run again", always | {"temporaries": count + beside}) for what, count in passing]


def _moment(workload: Workload, phase: str, what: str, **counts: int) -> Moment:
    """Add what is always there: parameters, the batch (2T tokens of 8 bytes), and the rotations' tables (4S·d/H)."""
    other = 2 * INT64_BYTES * workload.tokens + FP32_BYTES * workload.seq_len * workload.size.head_dim
    always = {"parameters": parameter_bytes(workload.size, workload.vocab_size), "other": other}
    return Moment(phase, what, {name: (always | counts).get(name, 0) for name in CATEGORIES})


def _optimizer_state_bytes(workload: Workload) -> int:
    """Count the bytes of AdamW's two moments in fp32: 8P. (Its step counters live on the host.)"""
    return ADAMW_MOMENTS * parameter_bytes(workload.size, workload.vocab_size)


def _all_blocks_copies(workload: Workload) -> int:
    return workload.size.num_layers * block_weight_copy_bytes(workload)


def _recomputed_block_bytes(workload: Workload) -> int:
    return block_bytes(workload) + block_weight_copy_bytes(workload)


def _kept_at_last_block(workload: Workload) -> int:
    """Count the bytes that checkpoints hold when the forward pass runs the last block, without this block's own input.

    The inputs are those at its backward pass: recursive checkpointing keeps fewer when the forward pass is over, but
    until then its nested calls hold theirs.
    """
    layers = workload.size.num_layers
    runs = reruns(layers, workload.checkpoint_every, workload.checkpointing)
    last = next(rerun for rerun in runs if rerun.is_segment)
    inputs = last.inputs + (1 if last.blocks > 1 else 0)
    return inputs * residual_stream_bytes(workload) + kept_attention_bytes(workload, layers)


def _kept_before(workload: Workload, rerun: Rerun) -> int:
    """Count the bytes that earlier blocks saved: all of their tensors, or checkpoints and kept outputs of attention.

    These blocks' own checkpoint is the input of their first norm and counts with them.
    """
    if workload.checkpoint_every:
        return rerun.inputs * residual_stream_bytes(workload) + kept_attention_bytes(workload, rerun.start)
    return rerun.start * _recomputed_block_bytes(workload)


def _gradient_bytes_after(workload: Workload, rerun: Rerun) -> int:
    """Count the bytes of the gradients of the head, the last norm and all blocks after these."""
    later_blocks = workload.size.num_layers - rerun.start - rerun.blocks
    head = head_matrix_elements(workload.size, workload.vocab_size) + workload.size.d_model
    return FP32_BYTES * (head + later_blocks * block_parameter_count(workload.size))
