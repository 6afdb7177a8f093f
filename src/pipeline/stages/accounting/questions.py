"""Answer each question as rows, for the stage's record and for the command line."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from pipeline.formulas import buckets, feed_forward_parallel, mesh
from pipeline.formulas.activations import ATTENTIONS, attention_bytes, bytes_by_part
from pipeline.formulas.collectives import LinearCost, all_reduce_bus_factor, whole_tensor_ring_factor
from pipeline.formulas.feed_forward_parallel import PASSES, STRATEGIES, Layer
from pipeline.formulas.mesh import Block, Mesh
from pipeline.formulas.training_state import Sharded, devices_to_hold, training_state
from pipeline.formulas.units import FP32_BYTES, GB, GIB
from pipeline.stages.accounting.models import Model, Transformer

Rows = list[dict[str, Any]]

SHARDED_SHARE = 0.5
DEVICE_COUNTS = tuple(2**power for power in range(3, 13))
RING_SIZES = (2, 4, 8, 64)
TENSOR_SIZES = tuple(2**power for power in range(7))
BATCH_STEPS = tuple(2 ** (step / 4) for step in range(-8, 9))


def lacking(question: str, model: Model) -> str:
    """Name what the model lacks for the question; empty if nothing."""
    if question in ("activations", "attention") and not isinstance(model, Transformer):
        return "attention"
    return "feed-forward layers" if question in ("mesh", "parallel") and model.block.d_ff == 0 else ""


def memory_rows(model: Model, batch_size: int, seq_lens: Iterable[int], gpu_memory_gb: float) -> Rows:
    """Return training state and activations by sequence length, and the GPUs that hold them, for GB and for GiB."""
    state = training_state(model.parameters)
    rows = []
    for seq_len in seq_lens:
        activation_bytes = model.activation_bytes(batch_size, seq_len)
        total_bytes = state.total_bytes + activation_bytes
        rows.append(
            {
                "seq_len": seq_len,
                "parameters": model.parameters,
                "weights_bytes": state.weights_bytes,
                "gradients_bytes": state.gradients_bytes,
                "optimizer_bytes": state.optimizer_bytes,
                "state_bytes": state.total_bytes,
                "activation_bytes": activation_bytes,
                "total_bytes": total_bytes,
                "state_gpus": devices_to_hold(state.total_bytes, gpu_memory_gb * GB),
                "total_gpus": devices_to_hold(total_bytes, gpu_memory_gb * GB),
                "state_gpus_of_gib": devices_to_hold(state.total_bytes, gpu_memory_gb * GIB),
                "total_gpus_of_gib": devices_to_hold(total_bytes, gpu_memory_gb * GIB),
            }
        )
    return rows


def fsdp_rows(model: Model, batch_size: int, seq_lens: Iterable[int], device_memory_gb: float) -> Rows:
    """Return the memory of each of N devices that shard the state and half of the activations, and the least N.

    The least N is None if the unsharded half alone fills a device.
    """
    state_bytes = training_state(model.parameters).total_bytes
    rows = []
    for seq_len in seq_lens:
        sharded = Sharded(state_bytes, model.activation_bytes(batch_size, seq_len), SHARDED_SHARE)
        least = sharded.least_devices(device_memory_gb * GB)
        around_least = (least - 1, least) if least else ()
        rows += [
            {
                "seq_len": seq_len,
                "state_bytes": state_bytes,
                "activation_bytes": sharded.activation_bytes,
                "least_devices": least,
                "num_devices": num_devices,
                "bytes_per_device": sharded.bytes_per_device(num_devices),
            }
            for num_devices in sorted({*DEVICE_COUNTS, *around_least} - {0})
        ]
    return rows


def mesh_rows(model: Model, given: Mesh) -> Rows:
    """Return the least batch at which the forward pass is compute bound, on the given mesh and variations of it.

    `case` names them: given, overlap, fp8_weights, split (the same devices, divided differently), best_split and
    best_split_overlap (X and Y not whole). Rows of case batch have the times at batches around the given mesh's least.
    """
    block = model.block
    rows = [_mesh_row(case, block, varied, mesh.least_tokens(block, varied)) for case, varied in _cases(block, given)]
    least = mesh.least_tokens(block, given)
    if math.isfinite(least):
        rows += [_mesh_row("batch", block, given, step * least) for step in BATCH_STEPS]
    return rows


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


def _mesh_row(case: str, block: Block, devices: Mesh, tokens: float) -> dict[str, Any]:
    """Return the row of one mesh at one batch; tokens is None if no batch is large enough."""
    shape = {
        "case": case,
        "fsdp_size": devices.fsdp_size,
        "tensor_size": devices.tensor_size,
        "num_devices": devices.num_devices,
        "intensity_flops_per_byte": devices.intensity,
    }
    if not math.isfinite(tokens):
        return {**shape, "tokens": None}
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


def bucket_rows(model: Model, link: LinearCost) -> Rows:
    """Return the overhead of all-reducing fp32 gradients by number of buckets, in one call, and at the best number.

    `case` names them: buckets, one_call (after the backward pass), best (number of buckets not rounded).
    """
    gradient_bytes = training_state(model.parameters).gradients_bytes
    best = buckets.best_num_buckets(gradient_bytes, link)
    counts = sorted({2**power for power in range(math.ceil(math.log2(max(best, 2))) + 5)})
    overheads_s = [
        *(("buckets", count, buckets.bucketed_s(gradient_bytes, count, link)) for count in counts),
        ("one_call", 1, buckets.unhidden_s(gradient_bytes, 1, link)),
        ("best", best, buckets.least_overhead_s(gradient_bytes, link)),
    ]
    return [
        {
            "case": case,
            "gradient_bytes": gradient_bytes,
            "num_buckets": count,
            "bucket_bytes": gradient_bytes / count,
            "overhead_ms": 1e3 * overhead_s,
        }
        for case, count, overhead_s in overheads_s
    ]


def ring_rows(model: Model, bytes_per_s: float) -> Rows:
    """Return the time to all-reduce fp32 gradients around a ring, by shares of the tensor and by whole tensors."""
    gradient_bytes = training_state(model.parameters).gradients_bytes
    return [
        {
            "case": case,
            "num_devices": num_devices,
            "gradient_bytes": gradient_bytes,
            "sent_bytes": factor(num_devices) * gradient_bytes,
            "ring_ms": 1e3 * factor(num_devices) * gradient_bytes / bytes_per_s,
        }
        for case, factor in {"shares": all_reduce_bus_factor, "whole": whole_tensor_ring_factor}.items()
        for num_devices in RING_SIZES
    ]


def parallel_rows(layer: Layer) -> Rows:
    """Return FLOPs, bytes and times of one feed-forward layer in each pass, over the most devices that are worth it.

    Those are the most at which computing takes as long as communicating, and are not whole; data parallelism, which
    sends nothing in the forward pass, has there as many as in the backward pass.
    """
    return [
        _parallel_row(layer, strategy, phase, axes_overlap)
        for strategy in STRATEGIES
        for phase in PASSES
        for axes_overlap in ((True, False) if strategy == "fsdp_tensor" else (False,))
    ]


def _parallel_row(layer: Layer, strategy: str, phase: str, axes_overlap: bool) -> dict[str, Any]:
    x, y = feed_forward_parallel.most_shares(layer, strategy, phase, axes_overlap)
    found = feed_forward_parallel.cost(layer, phase, x, y, keeps_weights=strategy == "data_parallel")
    return {
        "strategy": strategy,
        "phase": phase,
        "axes_overlap": axes_overlap,
        "batch_shares": x,
        "width_shares": y,
        "most_devices": x * y,
        "device_flops": found.flops,
        "weight_bytes": found.weight_bytes,
        "activation_bytes": found.activation_bytes,
        "compute_ms": 1e3 * found.compute_s(layer),
        "communication_ms": 1e3 * found.communication_s(layer, axes_overlap),
    }


def activation_rows(model: Transformer, batch_size: int, seq_lens: Iterable[int]) -> Rows:
    """Return the bytes that a transformer's forward pass keeps in fp32, by part, with eager and flash attention."""
    state_bytes = training_state(model.parameters).total_bytes
    rows = []
    for attention in ATTENTIONS:
        for seq_len in seq_lens:
            parts = bytes_by_part(model.workload(batch_size, seq_len, attention))
            total_bytes = sum(parts.values())
            rows.append(
                {
                    "attention": attention,
                    "seq_len": seq_len,
                    **{f"{part}_bytes": count for part, count in parts.items()},
                    "activation_bytes": total_bytes,
                    "state_bytes": state_bytes,
                    "total_bytes": state_bytes + total_bytes,
                }
            )
    return rows


def attention_rows(model: Transformer, batch_size: int, seq_lens: Iterable[int]) -> Rows:
    """Return the bytes that one layer's attention keeps in fp32 for its backward pass, eager and flash."""
    rows = []
    for attention in ATTENTIONS:
        for seq_len in seq_lens:
            workload = model.workload(batch_size, seq_len, attention)
            rows.append(
                {
                    "attention": attention,
                    "seq_len": seq_len,
                    "head_dim": model.size.head_dim,
                    "score_matrix_bytes": FP32_BYTES * workload.score_elements,
                    **{f"{part}_bytes": count for part, count in attention_bytes(workload).items()},
                }
            )
    return rows
