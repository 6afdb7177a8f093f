"""Answer each question as rows, for the stage's tables and for the command line."""

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from pipeline.formulas import buckets, feed_forward_parallel, mesh
from pipeline.formulas.activations import ATTENTIONS, Workload, attention_bytes, bytes_by_part
from pipeline.formulas.collectives import LinearCost, all_reduce_bus_factor, whole_tensor_ring_factor
from pipeline.formulas.feed_forward_parallel import PASSES, STRATEGIES, Layer
from pipeline.formulas.mesh import Block, Mesh
from pipeline.formulas.training_state import Sharded, devices_to_hold, training_state
from pipeline.formulas.units import FP32_BYTES, GB, GIB
from pipeline.stages.accounting.cell import Settings
from pipeline.stages.accounting.models import Model, Transformer

Row = dict[str, Any]

# One token, then typical training contexts for models of this size.
LARGE_MODEL_SEQ_LENS = (1, 2048, 4096, 8192, 16384)
# The assignment's context lengths for its transformers, and its sequence lengths for attention alone.
CONTEXT_LENGTHS = (128, 256, 512, 1024)
ATTENTION_SEQ_LENS = (256, 1024, 4096, 8192, 16384)
SHARDED_SHARE = 0.5
DEVICE_COUNTS = tuple(2**power for power in range(3, 13))
RING_SIZES = (2, 4, 8, 64)
TENSOR_SIZES = tuple(2**power for power in range(7))
BATCH_STEPS = tuple(2 ** (step / 4) for step in range(-8, 9))


@dataclass(frozen=True)
class Asked:
    """What a question is about; without `seq_lens` it is answered for those usual for it."""

    model: Model
    settings: Settings
    batch_size: int = 1
    seq_lens: tuple[int, ...] = ()

    def workload(self, seq_len: int, attention: str) -> Workload:
        """Return the training step of a model that does not lack attention."""
        assert isinstance(self.model, Transformer)
        return self.model.workload(self.batch_size, seq_len, attention)


def answer(question: str, asked: Asked) -> list[Row]:
    """Return the rows that answer one of `cell.QUESTIONS`; the model lacks nothing of what it is about."""
    return [{**asked.model.numbers, **row} for row in ANSWERS[question](asked)]


def memory_rows(asked: Asked) -> Iterator[Row]:
    """Yield training state and activations by sequence length, and the GPUs that hold them, for GB and for GiB."""
    state, memory = training_state(asked.model.parameters), asked.settings.gpu_memory_gb
    for seq_len in asked.seq_lens or LARGE_MODEL_SEQ_LENS:
        activation_bytes = asked.model.activation_bytes(asked.batch_size, seq_len)
        sizes = {"state": state.total_bytes, "total": state.total_bytes + activation_bytes}
        yield {
            "seq_len": seq_len,
            "parameters": asked.model.parameters,
            **asdict(state),
            "activation_bytes": activation_bytes,
            **{f"{name}_bytes": size for name, size in sizes.items()},
            **{f"{name}_gpus": devices_to_hold(size, memory * GB) for name, size in sizes.items()},
            **{f"{name}_gpus_of_gib": devices_to_hold(size, memory * GIB) for name, size in sizes.items()},
        }


def fsdp_rows(asked: Asked) -> Iterator[Row]:
    """Yield the memory of each of N devices that shard the state and half of the activations, and the least N.

    The least N is None if the unsharded half alone fills a device.
    """
    state_bytes = training_state(asked.model.parameters).total_bytes
    for seq_len in asked.seq_lens or LARGE_MODEL_SEQ_LENS:
        sharded = Sharded(state_bytes, asked.model.activation_bytes(asked.batch_size, seq_len), SHARDED_SHARE)
        least = sharded.least_devices(asked.settings.device_memory_gb * GB)
        around_least = (least - 1, least) if least else ()
        for num_devices in sorted({*DEVICE_COUNTS, *around_least} - {0}):
            yield {
                "seq_len": seq_len,
                "state_bytes": state_bytes,
                "activation_bytes": sharded.activation_bytes,
                "least_devices": least,
                "num_devices": num_devices,
                "bytes_per_device": sharded.bytes_per_device(num_devices),
            }


def mesh_rows(asked: Asked) -> Iterator[Row]:
    """Yield the least batch at which the forward pass is compute bound, on the given mesh and variations of it.

    `case` names them: given, overlap, fp8_weights, split (the same devices, divided differently), best_split and
    best_split_overlap (X and Y not whole). Rows of case batch have the times at batches around the given mesh's least.
    """
    settings, block = asked.settings, asked.model.block
    given = Mesh(
        fsdp_size=settings.fsdp_size,
        tensor_size=settings.tensor_size,
        fsdp_axes=settings.fsdp_axes,
        tensor_axes=settings.tensor_axes,
        link_bytes_per_s=1e9 * settings.link_gbytes_per_s,
        flops_per_s=1e12 * settings.peak_tflops_per_s,
    )
    for case, varied in _cases(block, given):
        yield _mesh_row(case, block, varied, mesh.least_tokens(block, varied))
    least = mesh.least_tokens(block, given)
    if math.isfinite(least):
        for step in BATCH_STEPS:
            yield _mesh_row("batch", block, given, step * least)


def _cases(block: Block, given: Mesh) -> Iterator[tuple[str, Mesh]]:
    yield "given", given
    overlapping = replace(given, axes_overlap=True)
    yield "overlap", overlapping
    yield "fp8_weights", replace(given, weight_bytes=1)
    for tensor_size in TENSOR_SIZES:
        if given.num_devices % tensor_size == 0 and tensor_size != given.tensor_size:
            yield "split", _split(given, tensor_size)
    yield "best_split", _split(given, mesh.best_tensor_size(block, given))
    yield "best_split_overlap", _split(overlapping, mesh.best_tensor_size(block, overlapping))


def _split(given: Mesh, tensor_size: float) -> Mesh:
    return replace(given, fsdp_size=given.num_devices / tensor_size, tensor_size=tensor_size)


def _mesh_row(case: str, block: Block, devices: Mesh, tokens: float) -> Row:
    """Return the row of one mesh at one batch; without times if no batch is large enough."""
    shape = {
        "case": case,
        "fsdp_size": devices.fsdp_size,
        "tensor_size": devices.tensor_size,
        "num_devices": devices.num_devices,
        "intensity_flops_per_byte": devices.intensity,
    }
    if not math.isfinite(tokens):
        return shape
    whole_per_device = math.ceil(tokens / devices.num_devices)
    return {
        **shape,
        "tokens": tokens,
        "tokens_per_device": tokens / devices.num_devices,
        "whole_tokens_per_device": whole_per_device,
        "whole_tokens": whole_per_device * devices.num_devices,
        "compute_ms": 1e3 * mesh.compute_s(block, tokens, devices),
        "fsdp_ms": 1e3 * mesh.fsdp_s(block, devices),
        "tensor_ms": 1e3 * mesh.tensor_s(block, tokens, devices),
        "communication_ms": 1e3 * mesh.communication_s(block, tokens, devices),
    }


def bucket_rows(asked: Asked) -> Iterator[Row]:
    """Yield the overhead of all-reducing fp32 gradients by number of buckets, in one call, and at the best number.

    `case` names them: buckets, one_call (after the backward pass), best (number of buckets not rounded).
    """
    settings, gradient_bytes = asked.settings, training_state(asked.model.parameters).gradients_bytes
    link = LinearCost(1e-6 * settings.call_overhead_us, 1e9 * settings.allreduce_gbytes_per_s)
    best = buckets.best_num_buckets(gradient_bytes, link)
    counts = sorted({2**power for power in range(math.ceil(math.log2(max(best, 2))) + 5)})
    overheads_s = [
        *(("buckets", count, buckets.bucketed_s(gradient_bytes, count, link)) for count in counts),
        ("one_call", 1, link.seconds(gradient_bytes)),
        ("best", best, buckets.least_overhead_s(gradient_bytes, link)),
    ]
    for case, count, overhead_s in overheads_s:
        yield {
            "case": case,
            "gradient_bytes": gradient_bytes,
            "num_buckets": count,
            "bucket_bytes": gradient_bytes / count,
            "overhead_ms": 1e3 * overhead_s,
        }


def ring_rows(asked: Asked) -> Iterator[Row]:
    """Yield the time to all-reduce fp32 gradients around a ring, by shares of the tensor and by whole tensors."""
    gradient_bytes = training_state(asked.model.parameters).gradients_bytes
    for case, factor in {"shares": all_reduce_bus_factor, "whole": whole_tensor_ring_factor}.items():
        for num_devices in RING_SIZES:
            sent_bytes = factor(num_devices) * gradient_bytes
            yield {
                "case": case,
                "num_devices": num_devices,
                "gradient_bytes": gradient_bytes,
                "sent_bytes": sent_bytes,
                "ring_ms": 1e3 * sent_bytes / (1e9 * asked.settings.egress_gbytes_per_s),
            }


def parallel_rows(asked: Asked) -> Iterator[Row]:
    """Yield FLOPs, bytes and times of one feed-forward layer in each pass, over the most devices that are worth it.

    Those are the most at which computing takes as long as communicating, and are not whole; data parallelism, which
    sends nothing in the forward pass, has there as many as in the backward pass.
    """
    settings = asked.settings
    flops_per_s, bytes_per_s = 1e12 * settings.peak_tflops_per_s, 1e9 * settings.egress_gbytes_per_s
    layer = Layer(asked.model.block, settings.batch_tokens, flops_per_s, bytes_per_s)
    for strategy in STRATEGIES:
        for phase in PASSES:
            for axes_overlap in (True, False) if strategy == "fsdp_tensor" else (False,):
                yield _parallel_row(layer, strategy, phase, axes_overlap)


def _parallel_row(layer: Layer, strategy: str, phase: str, axes_overlap: bool) -> Row:
    x, y = feed_forward_parallel.most_shares(layer, strategy, phase, axes_overlap)
    whole_x, whole_y = feed_forward_parallel.most_whole_shares(layer, strategy, phase, axes_overlap)
    found = feed_forward_parallel.cost(layer, phase, x, y, keeps_weights=strategy == "data_parallel")
    return {
        "strategy": strategy,
        "phase": phase,
        "axes_overlap": axes_overlap,
        "batch_shares": x,
        "width_shares": y,
        "most_devices": x * y,
        "whole_batch_shares": whole_x,
        "whole_width_shares": whole_y,
        "whole_devices": whole_x * whole_y,
        "device_flops": found.flops,
        "weight_bytes": found.weight_bytes,
        "activation_bytes": found.activation_bytes,
        "compute_ms": 1e3 * found.compute_s(layer),
        "communication_ms": 1e3 * found.communication_s(layer, axes_overlap),
    }


def activation_rows(asked: Asked) -> Iterator[Row]:
    """Yield the bytes that a transformer's forward pass keeps in fp32, by part, with eager and flash attention."""
    state_bytes = training_state(asked.model.parameters).total_bytes
    for attention in ATTENTIONS:
        for seq_len in asked.seq_lens or CONTEXT_LENGTHS:
            parts = bytes_by_part(asked.workload(seq_len, attention))
            kept = sum(parts.values())
            totals = {"activation": kept, "state": state_bytes, "total": state_bytes + kept}
            counts = {f"{part}_bytes": count for part, count in {**parts, **totals}.items()}
            yield {"attention": attention, "seq_len": seq_len, **counts}


def attention_rows(asked: Asked) -> Iterator[Row]:
    """Yield the bytes that one layer's attention keeps in fp32 for its backward pass, eager and flash."""
    for attention in ATTENTIONS:
        for seq_len in asked.seq_lens or ATTENTION_SEQ_LENS:
            workload = asked.workload(seq_len, attention)
            yield {
                "attention": attention,
                "seq_len": seq_len,
                "head_dim": workload.size.head_dim,
                "score_matrix_bytes": FP32_BYTES * workload.score_elements,
                **{f"{part}_bytes": count for part, count in attention_bytes(workload).items()},
            }


ANSWERS: dict[str, Callable[[Asked], Iterator[Row]]] = {
    "memory": memory_rows,
    "fsdp": fsdp_rows,
    "mesh": mesh_rows,
    "buckets": bucket_rows,
    "ring": ring_rows,
    "parallel": parallel_rows,
    "activations": activation_rows,
    "attention": attention_rows,
}
