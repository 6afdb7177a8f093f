"""The peak memory of a forward pass or a training step, predicted in closed form. Imports no torch.

A step goes through a few moments at which memory can be at its height; each is written down as what is alive then,
and the highest is the peak. Symbols as in `pipeline.model.activations`, and P the number of parameters.

Left out, for they belong to the device: workspaces of the matrix-product library, memory that the allocator rounds
up or keeps in reserve, the CUDA context.
"""

from dataclasses import dataclass, field

from pipeline.model import activations
from pipeline.model.accounting import parameter_bytes
from pipeline.model.activations import BF16_BYTES, FP32_BYTES, INT64_BYTES, Workload

CATEGORIES = ("parameters", "gradients", "optimizer_state", "activations", "temporaries", "other")
MODES = ("inference", "forward", "train_step")
MODE_PHASES = {
    "inference": ("forward",),
    "forward": ("forward",),
    "train_step": ("forward", "backward", "optimizer"),
}

Composition = dict[str, int]


@dataclass(frozen=True)
class Moment:
    """One moment of a step: the phase it is in, what is being computed, and the bytes alive by category."""

    phase: str
    what: str
    bytes_by_category: Composition = field(hash=False)

    @property
    def total_bytes(self) -> int:
        """All that is alive."""
        return sum(self.bytes_by_category.values())


def predict_peaks(workload: Workload, mode: str, first_step: bool = False) -> dict[str, Moment]:
    """Give the highest moment of each phase of a step.

    mode: "inference" (the forward pass without gradients), "forward" (with them, so that its activations are kept)
    or "train_step". `first_step`: AdamW makes its two moments at the end of the first step, so that forward and
    backward do not have them yet. Raises ValueError for another mode.
    """
    if mode not in MODES:
        raise ValueError(f"mode={mode!r}: must be one of {', '.join(MODES)}")
    step_moments = {
        "inference": lambda: inference_moments(workload),
        "forward": lambda: forward_moments(workload, optimizer_state=0),
        "train_step": lambda: _train_step_moments(workload, first_step),
    }[mode]()
    return {phase: _highest(step_moments, phase) for phase in MODE_PHASES[mode]}


def _highest(moments: list[Moment], phase: str) -> Moment:
    return max((moment for moment in moments if moment.phase == phase), key=lambda moment: moment.total_bytes)


def _train_step_moments(workload: Workload, first_step: bool) -> list[Moment]:
    before = 0 if first_step else optimizer_state_bytes(workload)
    return [
        *forward_moments(workload, before),
        *backward_moments(workload, before),
        optimizer_moment(workload),
    ]


def optimizer_state_bytes(workload: Workload) -> int:
    """Count AdamW's two moments in fp32: 8P. (Its step counts live on the host.)"""
    return 2 * parameter_bytes(workload.size, workload.vocab_size)


def other_bytes(workload: Workload) -> int:
    """Count the batch, 2T tokens of 8 bytes, and the cosines and sines of the rotations, 4S·d/H."""
    head_dim = workload.size.d_model // workload.size.num_heads
    return 2 * INT64_BYTES * workload.tokens + FP32_BYTES * workload.seq_len * head_dim


def inference_moments(workload: Workload) -> list[Moment]:
    """Write down the forward pass without gradients, in the last block and at the loss.

    Nothing is kept from block to block but x. Softmax: x and its norm (8Td), q, k, v (3eTd) and the scores with
    their softmax. SwiGLU's product: x and its norm, silu(gate), up and the product (3eTf). Loss: the logits and
    their log-softmax in fp32 (8TV), under autocast the bf16 logits too (10TV). Autocast's weight copies pile up.
    """
    stream, e = activations.residual_stream_bytes(workload), workload.product_bytes
    copies = activations.weight_copy_bytes(workload)
    head_copy = activations.head_weight_copy_bytes(workload)
    hidden = e * workload.tokens * workload.size.d_ff
    temporaries = {
        "softmax": 2 * stream + 3 * e * _stream_elements(workload) + _softmax_bytes(workload) + copies - head_copy,
        "SwiGLU's product": 2 * stream + 3 * hidden + copies - head_copy,
        "loss": _logit_bytes(workload) + FP32_BYTES * workload.tokens * workload.vocab_size + copies,
    }
    return [_moment(workload, "forward", what, temporaries=count) for what, count in temporaries.items()]


def forward_moments(workload: Workload, optimizer_state: int) -> list[Moment]:
    """Write down the forward pass with gradients: the softmax of the last block, and the loss.

    At the softmax all that the blocks keep is there, but for the feed-forward half of the last; the scores and,
    under autocast on CUDA, their fp32 copy live beside the softmax's output. At the loss all is there, with the
    logits (4TV; under autocast 2TV and their fp32 copy). With checkpointing, what the blocks do not keep is gone,
    but for the last block's own and for the weight copies, which are cached until the pass ends.
    """
    saved = sum(activations.saved_terms(workload).values())
    later = sum(activations.head_bytes(workload).values()) + activations.head_weight_copy_bytes(workload)
    later += 0 if workload.checkpoint_every else sum(activations.feed_forward_block_bytes(workload).values())
    cached = _copies_dropped_by_checkpoints(workload)
    softmax = _softmax_bytes(workload) - (0 if workload.checkpoint_every else activations.score_bytes(workload))
    of_block = _attention_inputs_bytes(workload)
    shared = {"optimizer_state": optimizer_state}
    return [
        _moment(
            workload,
            "forward",
            "softmax of the last block",
            **shared,
            activations=saved - later,
            temporaries=max(0, softmax) + of_block + cached,
        ),
        _moment(
            workload, "forward", "loss", **shared, activations=saved, temporaries=_logit_bytes(workload) + cached
        ),
    ]


def backward_moments(workload: Workload, optimizer_state: int) -> list[Moment]:
    """Write down the backward pass: the loss, then SwiGLU and softmax of each recomputed segment's last block.

    Loss: the gradients of the negative log-likelihood and of the log-softmax, 8TV, beside all that was kept. Then,
    from the last segment to the first, what was kept of those before, what the segment keeps or keeps again,
    the gradients of all parameters behind it, and what the moment needs beside them.
    """
    saved = sum(activations.saved_terms(workload).values())
    loss_gradients = 2 * FP32_BYTES * workload.tokens * workload.vocab_size
    state = {"optimizer_state": optimizer_state}
    moments = [_moment(workload, "backward", "loss", **state, activations=saved, temporaries=loss_gradients)]
    lengths = activations.segment_lengths(workload)
    block_gradients = FP32_BYTES * (activations.block_weight_elements(workload.size) + 2 * workload.size.d_model)
    head_gradients = FP32_BYTES * (activations.head_weight_elements(workload) + workload.size.d_model)
    for number, length in enumerate(lengths):
        kept = _kept_before(workload, number) + length * _recomputed_block_bytes(workload)
        gradients = head_gradients + sum(lengths[number + 1 :]) * block_gradients
        moments += [
            _swiglu_backward(workload, kept, gradients, optimizer_state),
            _softmax_backward(workload, kept, gradients, optimizer_state),
        ]
    everything = parameter_bytes(workload.size, workload.vocab_size)
    stream = activations.residual_stream_bytes(workload)
    return [*moments, _moment(workload, "backward", "embedding", **state, gradients=everything, temporaries=stream)]


def _swiglu_backward(workload: Workload, kept: int, gradients: int, optimizer_state: int) -> Moment:
    """At SwiGLU's product: its gradient and those of its two factors (3eTf) for the product, which is gone."""
    hidden = workload.product_bytes * workload.tokens * workload.size.d_ff
    return _moment(
        workload,
        "backward",
        "SwiGLU",
        optimizer_state=optimizer_state,
        activations=kept - hidden,
        gradients=gradients + FP32_BYTES * workload.size.d_model * workload.size.d_ff,
        temporaries=3 * hidden + activations.residual_stream_bytes(workload),
    )


def _softmax_backward(workload: Workload, kept: int, gradients: int, optimizer_state: int) -> Moment:
    """At the softmax: gradients of its output and its input; the feed-forward half is done, its gradients there."""
    size = workload.size
    done = sum(activations.feed_forward_block_bytes(workload).values())
    done += activations.product_input_bytes(workload, products=1)
    done += BF16_BYTES * (3 * size.d_model * size.d_ff + size.d_model**2) if workload.is_autocast else 0
    made = FP32_BYTES * (3 * size.d_model * size.d_ff + size.d_model**2)
    return _moment(
        workload,
        "backward",
        "attention",
        optimizer_state=optimizer_state,
        activations=kept - done,
        gradients=gradients + made,
        temporaries=_attention_gradient_bytes(workload) + activations.residual_stream_bytes(workload),
    )


def optimizer_moment(workload: Workload) -> Moment:
    """Write down AdamW's update: parameters, gradients, both moments, and the square roots of the second.

    On CUDA PyTorch updates all parameters together (foreach) and makes the roots of all at once: 4P. On a CPU it
    takes one parameter after the other: root and quotient of the largest, 8 max(Vd, df) bytes.
    """
    parameters = parameter_bytes(workload.size, workload.vocab_size)
    largest = workload.size.d_model * max(workload.vocab_size, workload.size.d_ff)
    roots = parameters if workload.device_type == "cuda" else 2 * FP32_BYTES * largest
    return _moment(
        workload,
        "optimizer",
        "square roots of the second moments",
        optimizer_state=optimizer_state_bytes(workload),
        gradients=parameters,
        temporaries=roots,
    )


def _moment(workload: Workload, phase: str, what: str, **counts: int) -> Moment:
    always = {"parameters": parameter_bytes(workload.size, workload.vocab_size), "other": other_bytes(workload)}
    return Moment(phase, what, {name: (always | counts).get(name, 0) for name in CATEGORIES})


def _stream_elements(workload: Workload) -> int:
    return workload.tokens * workload.size.d_model


def _logit_bytes(workload: Workload) -> int:
    """Count what the log-softmax reads: 4TV, under autocast 2TV and their copy in fp32."""
    element = BF16_BYTES + FP32_BYTES if workload.is_autocast else FP32_BYTES
    return element * workload.tokens * workload.vocab_size


def _softmax_bytes(workload: Workload) -> int:
    """Count scores and softmax while it runs: 2e, under autocast on CUDA 2 + 4 + 4 an element; 0 when fused."""
    if workload.is_fused:
        return 0
    in_fp32 = workload.is_autocast and workload.device_type == "cuda"
    element = BF16_BYTES + 2 * FP32_BYTES if in_fp32 else 2 * workload.product_bytes
    return element * workload.score_elements


def _attention_inputs_bytes(workload: Workload) -> int:
    """Count q before its scaling and v before its copy, eager: 2eTd; with checkpointing all of q, k, v and x's norm."""
    width = workload.product_bytes * _stream_elements(workload)
    if workload.checkpoint_every:
        return 3 * width + activations.residual_stream_bytes(workload)
    return 0 if workload.is_fused else 2 * width


def _attention_gradient_bytes(workload: Workload) -> int:
    """Count what attention's backward pass makes.

    Eager: the gradients of the output and of v (2eTd), and of the softmax's output and input: 2e an element of
    the scores; under autocast on CUDA both in fp32, the bf16 copy of the softmax being gone. Fused: the
    gradients of the output, q, k and v (4eTd).
    """
    width = workload.product_bytes * _stream_elements(workload)
    if workload.is_fused:
        return 4 * width
    in_fp32 = workload.is_autocast and workload.device_type == "cuda"
    element = 2 * FP32_BYTES - BF16_BYTES if in_fp32 else 2 * workload.product_bytes
    return 2 * width + element * workload.score_elements


def _copies_dropped_by_checkpoints(workload: Workload) -> int:
    """Count the weight copies that only autocast's cache holds."""
    if not workload.checkpoint_every:
        return 0
    return activations.weight_copy_bytes(workload) - activations.head_weight_copy_bytes(workload)


def _recomputed_block_bytes(workload: Workload) -> int:
    return activations.block_bytes(workload) + activations.block_weight_copy_bytes(workload)


def _kept_before(workload: Workload, segment: int) -> int:
    """Count what is kept of the segments before this one: all of their blocks, or their checkpoints and its own.

    Its own checkpoint is its first norm's input, which the blocks' count has already.
    """
    if workload.checkpoint_every:
        return segment * activations.residual_stream_bytes(workload)
    return segment * _recomputed_block_bytes(workload)
