"""Rows of the accounting stage: the answers to each question by formula, nothing measured."""

from dataclasses import dataclass

from pipeline.cells.rows import Row, RowTypes, column
from pipeline.formulas.activations import ATTENTIONS
from pipeline.formulas.feed_forward_parallel import PASSES, STRATEGIES


@dataclass(frozen=True, kw_only=True)
class _OfModel(Row):
    d_model: int = column("width of the residual stream, D", minimum=1)
    d_ff: int = column("width of the feed-forward layers, F; 0 without any", minimum=0)
    num_blocks: int = column("feed-forward blocks, or layers of a transformer, L", minimum=1)
    num_heads: int | None = column("attention heads; empty for feed-forward blocks alone", minimum=1)


@dataclass(frozen=True, kw_only=True)
class Memory(_OfModel):
    """The training state in fp32, the activations, and the GPUs that hold them, at one sequence length."""

    KEYS = ("seq_len",)

    seq_len: int = column("tokens in a sequence", minimum=1)
    parameters: int = column("parameters of the model", minimum=1)
    weights_bytes: int = column("weights in fp32", minimum=0)
    gradients_bytes: int = column("gradients in fp32", minimum=0)
    optimizer_bytes: int = column("both moments of AdamW in fp32", minimum=0)
    state_bytes: int = column("training state: weights, gradients and moments", minimum=0)
    activation_bytes: int = column("activations saved for the backward pass", minimum=0)
    total_bytes: int = column("training state and activations", minimum=0)
    state_gpus: int = column("GPUs that hold the state, their memory in GB", minimum=0)
    total_gpus: int = column("GPUs that hold state and activations, their memory in GB", minimum=0)
    state_gpus_of_gib: int = column("GPUs that hold the state, their memory in GiB", minimum=0)
    total_gpus_of_gib: int = column("GPUs that hold state and activations, their memory in GiB", minimum=0)


@dataclass(frozen=True, kw_only=True)
class ShardedMemory(_OfModel):
    """The memory of each of N devices that shard the state and half of the activations, at one sequence length."""

    KEYS = ("seq_len", "num_devices")

    seq_len: int = column("tokens in a sequence", minimum=1)
    state_bytes: int = column("training state of the whole model", minimum=0)
    activation_bytes: int = column("activations of the whole model", minimum=0)
    least_devices: int | None = column("least N that fits into the devices' memory; empty if none does", minimum=1)
    num_devices: int = column("devices, N", minimum=1)
    bytes_per_device: float = column("state and activations on each of N devices", minimum=0)


@dataclass(frozen=True, kw_only=True)
class MeshBatch(_OfModel):
    """A batch on a mesh of X devices for FSDP by Y for tensor parallelism, and the times of one block."""

    KEYS = ("case", "tensor_size", "tokens")

    case: str = column(
        "given: the least compute-bound batch on the mesh of the settings; overlap, fp8_weights, split, best_split,"
        " best_split_overlap: the same with this changed; batch: other batches on the mesh of the settings",
        allowed=("given", "overlap", "fp8_weights", "split", "best_split", "best_split_overlap", "batch"),
    )
    fsdp_size: float = column("devices along the FSDP dimension, X; not whole in the best splits", positive=True)
    tensor_size: float = column(
        "devices along the tensor-parallel dimension, Y; not whole in the best splits", positive=True
    )
    num_devices: float = column("X times Y", positive=True)
    intensity_flops_per_byte: float = column("FLOPs that a device does while it receives one byte", positive=True)
    tokens: float | None = column("tokens of the batch; empty if no batch is compute bound", positive=True)
    tokens_per_device: float | None = column("tokens over X times Y", positive=True)
    whole_tokens_per_device: int | None = column("tokens_per_device rounded up", minimum=1)
    whole_tokens: float | None = column("whole_tokens_per_device times X times Y", positive=True)
    compute_ms: float | None = column("time of the block's products", minimum=0)
    fsdp_ms: float | None = column("time to gather the block's weights over X", minimum=0)
    tensor_ms: float | None = column("time to gather the block's input and scatter its output over Y", minimum=0)
    communication_ms: float | None = column("time of both transfers; of the longer one where they overlap", minimum=0)


@dataclass(frozen=True, kw_only=True)
class BucketOverhead(_OfModel):
    """The time that all-reducing fp32 gradients in buckets adds to the backward pass."""

    KEYS = ("case", "num_buckets")

    case: str = column(
        "buckets: a whole number of buckets; best: the best number, not rounded; one_call: all after the backward pass",
        allowed=("buckets", "one_call", "best"),
    )
    gradient_bytes: int = column("gradients in fp32", minimum=0)
    num_buckets: float = column("buckets, one call each", positive=True)
    bucket_bytes: float = column("gradients in a bucket", minimum=0)
    overhead_ms: float = column("communication time that no computation hides", minimum=0)


@dataclass(frozen=True, kw_only=True)
class RingAllReduce(_OfModel):
    """All-reducing fp32 gradients around a ring of devices that each send to the next one."""

    KEYS = ("case", "num_devices")

    case: str = column(
        "what a device sends in one step: shares of the tensor, 2(N-1) steps, or the whole, N-1 steps",
        allowed=("shares", "whole"),
    )
    num_devices: float = column("devices in the ring, N", positive=True)
    gradient_bytes: int = column("gradients in fp32", minimum=0)
    sent_bytes: float = column("bytes that each device sends", minimum=0)
    ring_ms: float = column("time at the bandwidth at which a device sends", minimum=0)


@dataclass(frozen=True, kw_only=True)
class ParallelFeedForward(_OfModel):
    """One feed-forward layer in 16 bits over the most devices at which computing takes as long as communicating."""

    KEYS = ("strategy", "phase", "axes_overlap")

    strategy: str = column("how the layer is divided over devices", allowed=STRATEGIES)
    phase: str = column("pass over the layer", allowed=PASSES)
    axes_overlap: bool = column("whether transfers of weights and of activations run at the same time")
    batch_shares: float = column("devices among which the batch is divided, X; not whole", positive=True)
    width_shares: float = column("devices among which each matrix is divided, Y; not whole", positive=True)
    most_devices: float = column("X times Y; by data parallelism both passes have the backward pass's", positive=True)
    device_flops: float = column("FLOPs of each device", minimum=0)
    weight_bytes: float = column("bytes that each device sends for weights or their gradients", minimum=0)
    activation_bytes: float = column("bytes that each device sends for activations or their gradients", minimum=0)
    compute_ms: float = column("time of the products", minimum=0)
    communication_ms: float = column("time of both transfers; of the longer one where they overlap", minimum=0)


@dataclass(frozen=True, kw_only=True)
class Activations(_OfModel):
    """Bytes that a transformer's forward pass keeps in fp32 for the backward pass, by part, at one sequence length."""

    KEYS = ("attention", "seq_len")

    attention: str = column("how attention is computed", allowed=ATTENTIONS)
    seq_len: int = column("tokens in a sequence", minimum=1)
    norms_bytes: int = column("kept by the norms of all layers", minimum=0)
    attention_bytes: int = column("kept by attention in all layers, besides scores", minimum=0)
    scores_bytes: int = column("kept for the softmax; eager: its output, flash: the LSE", minimum=0)
    feed_forward_bytes: int = column("kept by the feed-forward layers", minimum=0)
    head_bytes: int = column("kept by the last norm, the head and the loss", minimum=0)
    activation_bytes: int = column("sum of the parts", minimum=0)
    state_bytes: int = column("training state in fp32", minimum=0)
    total_bytes: int = column("training state and activations", minimum=0)


@dataclass(frozen=True, kw_only=True)
class AttentionMemory(_OfModel):
    """Bytes that one layer's attention keeps in fp32 for its backward pass, at one sequence length."""

    KEYS = ("attention", "seq_len")

    attention: str = column("how attention is computed", allowed=ATTENTIONS)
    seq_len: int = column("tokens in a sequence", minimum=1)
    head_dim: int = column("width of a head", minimum=1)
    score_matrix_bytes: int = column("scores of all heads and sequences", minimum=0)
    inputs_bytes: int = column("q, k and v", minimum=0)
    kept_bytes: int = column("kept in addition; eager: the softmax's output, flash: output and LSE", minimum=0)
    most_bytes: int = column("peak in addition to the inputs during the forward pass", minimum=0)


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
