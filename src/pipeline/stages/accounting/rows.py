"""Rows of the accounting stage: answers by formula. All columns are derived, because nothing is measured."""

from dataclasses import dataclass
from typing import Any

from pipeline.cells.rows import Reading, Row, RowTypes, derived
from pipeline.formulas.activations import ATTENTIONS
from pipeline.formulas.feed_forward_parallel import PASSES, STRATEGIES
from pipeline.stages.accounting.cell import Settings
from pipeline.stages.accounting.models import model_named
from pipeline.stages.accounting.questions import Asked, answer


@dataclass(frozen=True, kw_only=True)
class _OfModel(Row):
    """Columns of all answers. A record has one row, which stands for all of them."""

    d_model: int = derived("width of the residual stream, D", minimum=1)
    d_ff: int = derived("width of the feed-forward layers, F; 0 without any", minimum=0)
    num_blocks: int = derived("feed-forward blocks, or layers of a transformer, L", minimum=1)
    num_heads: int | None = derived("attention heads; empty for feed-forward blocks alone", minimum=1)

    @classmethod
    def derive_rows(cls, reading: Reading) -> list[dict[str, Any]]:
        """Return the answers to the cell's question; no values if the model lacks what it is about."""
        if reading.row["status"] != "ok":
            return [{}]
        cell, settings = reading.cell, Settings(**reading.settings)
        return answer(cell.question, Asked(model_named(cell.size, settings.vocab_size), settings, cell.batch_size))


@dataclass(frozen=True, kw_only=True)
class Memory(_OfModel):
    """The training state in fp32, the activations, and the GPUs needed for them, at one sequence length."""

    KEYS = ("seq_len",)

    seq_len: int = derived("tokens in a sequence", minimum=1)
    parameters: int = derived("parameters of the model", minimum=1)
    weights_bytes: int = derived("weights in fp32", minimum=0)
    gradients_bytes: int = derived("gradients in fp32", minimum=0)
    optimizer_bytes: int = derived("both moments of AdamW in fp32", minimum=0)
    state_bytes: int = derived("training state: weights, gradients and moments", minimum=0)
    activation_bytes: int = derived("activations saved for the backward pass", minimum=0)
    total_bytes: int = derived("training state and activations", minimum=0)
    state_gpus: int = derived("GPUs needed for the state, if their memory is in GB", minimum=0)
    total_gpus: int = derived("GPUs needed for state and activations, if their memory is in GB", minimum=0)
    state_gpus_of_gib: int = derived("GPUs needed for the state, if their memory is in GiB", minimum=0)
    total_gpus_of_gib: int = derived("GPUs needed for state and activations, if their memory is in GiB", minimum=0)


@dataclass(frozen=True, kw_only=True)
class ShardedMemory(_OfModel):
    """The memory of each of N devices that shard the state and half of the activations, at one sequence length."""

    KEYS = ("seq_len", "num_devices")

    seq_len: int = derived("tokens in a sequence", minimum=1)
    state_bytes: int = derived("training state of the whole model", minimum=0)
    activation_bytes: int = derived("activations of the whole model", minimum=0)
    least_devices: int | None = derived(
        "smallest N at which all fits into the devices' memory; empty if none does", minimum=1
    )
    num_devices: int = derived("devices, N", minimum=1)
    bytes_per_device: float = derived("state and activations on each of N devices", minimum=0)


@dataclass(frozen=True, kw_only=True)
class MeshBatch(_OfModel):
    """A batch on a mesh of X devices for FSDP by Y for tensor parallelism, and the times of one block."""

    KEYS = ("case", "tensor_size", "tokens")

    case: str = derived(
        "given: the smallest compute-bound batch on the mesh of the settings; overlap, fp8_weights, split, best_split,"
        " best_split_overlap: the same with this changed; batch: other batches on the mesh of the settings",
        allowed=("given", "overlap", "fp8_weights", "split", "best_split", "best_split_overlap", "batch"),
    )
    fsdp_size: float = derived("devices along the FSDP dimension, X; not whole in the best splits", positive=True)
    tensor_size: float = derived(
        "devices along the tensor-parallel dimension, Y; not whole in the best splits", positive=True
    )
    num_devices: float = derived("X times Y", positive=True)
    intensity_flops_per_byte: float = derived("FLOPs that a device does while it receives one byte", positive=True)
    tokens: float | None = derived("tokens of the batch; empty if no batch is compute bound", positive=True)
    tokens_per_device: float | None = derived("tokens over X times Y", positive=True)
    whole_tokens_per_device: int | None = derived("tokens_per_device rounded up", minimum=1)
    whole_tokens: float | None = derived("whole_tokens_per_device times X times Y", positive=True)
    compute_ms: float | None = derived("time of the block's products", minimum=0)
    fsdp_ms: float | None = derived("time to gather the block's weights over X", minimum=0)
    tensor_ms: float | None = derived("time to gather the block's input and scatter its output over Y", minimum=0)
    communication_ms: float | None = derived("time of both transfers; of the longer one if they overlap", minimum=0)


@dataclass(frozen=True, kw_only=True)
class BucketOverhead(_OfModel):
    """The time that all-reducing fp32 gradients in buckets adds to the backward pass."""

    KEYS = ("case", "num_buckets")

    case: str = derived(
        "buckets: a whole number of buckets; best: the best number, not rounded; one_call: all after the backward pass",
        allowed=("buckets", "one_call", "best"),
    )
    gradient_bytes: int = derived("gradients in fp32", minimum=0)
    num_buckets: float = derived("buckets, one call each", positive=True)
    bucket_bytes: float = derived("gradients in a bucket", minimum=0)
    overhead_ms: float = derived("communication time that no computation hides", minimum=0)


@dataclass(frozen=True, kw_only=True)
class RingAllReduce(_OfModel):
    """All-reducing fp32 gradients around a ring of devices that each send to the next one."""

    KEYS = ("case", "num_devices")

    case: str = derived(
        "what a device sends in one step: shares of the tensor, 2(N-1) steps, or the whole, N-1 steps",
        allowed=("shares", "whole"),
    )
    num_devices: float = derived("devices in the ring, N", positive=True)
    gradient_bytes: int = derived("gradients in fp32", minimum=0)
    sent_bytes: float = derived("bytes that each device sends", minimum=0)
    ring_ms: float = derived("time at the bandwidth at which a device sends", minimum=0)


@dataclass(frozen=True, kw_only=True)
class ParallelFeedForward(_OfModel):
    """One feed-forward layer in 16 bits, on the largest number of devices at which it stays compute bound."""

    KEYS = ("strategy", "phase", "axes_overlap")

    strategy: str = derived("how the layer is divided over devices", allowed=STRATEGIES)
    phase: str = derived("pass over the layer", allowed=PASSES)
    axes_overlap: bool = derived("whether transfers of weights and of activations run at the same time")
    batch_shares: float = derived("devices among which the batch is divided, X; not whole", positive=True)
    width_shares: float = derived("devices among which each matrix is divided, Y; not whole", positive=True)
    most_devices: float = derived("X times Y; data parallelism has the backward pass's in both passes", positive=True)
    whole_batch_shares: int = derived("X of the largest whole split that stays compute bound", minimum=1)
    whole_width_shares: int = derived("Y of the largest whole split that stays compute bound", minimum=1)
    whole_devices: int = derived("devices of the largest whole split: X times Y", minimum=1)
    device_flops: float = derived("FLOPs of each device", minimum=0)
    weight_bytes: float = derived("bytes that each device sends for weights or their gradients", minimum=0)
    activation_bytes: float = derived("bytes that each device sends for activations or their gradients", minimum=0)
    compute_ms: float = derived("time of the products", minimum=0)
    communication_ms: float = derived("time of both transfers; of the longer one if they overlap", minimum=0)


@dataclass(frozen=True, kw_only=True)
class Activations(_OfModel):
    """Bytes that a transformer's forward pass keeps in fp32 for the backward pass, by part, at one sequence length."""

    KEYS = ("attention", "seq_len")

    attention: str = derived("how attention is computed", allowed=ATTENTIONS)
    seq_len: int = derived("tokens in a sequence", minimum=1)
    norms_bytes: int = derived("kept by the norms of all layers", minimum=0)
    attention_bytes: int = derived("kept by attention in all layers, without scores", minimum=0)
    scores_bytes: int = derived("kept for the softmax; eager: its output, flash: the LSE", minimum=0)
    feed_forward_bytes: int = derived("kept by the feed-forward layers", minimum=0)
    head_bytes: int = derived("kept by the last norm, the head and the loss", minimum=0)
    activation_bytes: int = derived("sum of the parts", minimum=0)
    state_bytes: int = derived("training state in fp32", minimum=0)
    total_bytes: int = derived("training state and activations", minimum=0)


@dataclass(frozen=True, kw_only=True)
class AttentionMemory(_OfModel):
    """Bytes that one layer's attention keeps in fp32 for its backward pass, at one sequence length."""

    KEYS = ("attention", "seq_len")

    attention: str = derived("how attention is computed", allowed=ATTENTIONS)
    seq_len: int = derived("tokens in a sequence", minimum=1)
    head_dim: int = derived("width of a head", minimum=1)
    score_matrix_bytes: int = derived("scores of all heads and sequences", minimum=0)
    inputs_bytes: int = derived("q, k and v", minimum=0)
    kept_bytes: int = derived("kept in addition; eager: the softmax's output, flash: output and LSE", minimum=0)
    most_bytes: int = derived("peak in addition to the inputs during the forward pass", minimum=0)


ROW_TYPES = RowTypes(
    {
        "memory": Memory,
        "fsdp": ShardedMemory,
        "mesh": MeshBatch,
        "buckets": BucketOverhead,
        "ring": RingAllReduce,
        "parallel": ParallelFeedForward,
        "activations": Activations,
        "attention": AttentionMemory,
    },
    kind_column="question",
)
