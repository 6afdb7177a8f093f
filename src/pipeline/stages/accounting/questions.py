"""Answer each question as rows, for the stage's tables and for the command line."""

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any

from pipeline.formulas import buckets, feed_forward_parallel, mesh
from pipeline.formulas.activations import ATTENTIONS, Workload, attention_bytes, bytes_by_part
from pipeline.formulas.collectives import LinearCost, all_reduce_bus_factor
from pipeline.formulas.feed_forward_parallel import PASSES, STRATEGIES, Layer
from pipeline.formulas.mesh import Block, Mesh
from pipeline.formulas.training_state import Sharded, TrainingState, devices_to_hold, training_state
from pipeline.formulas.units import FP32_BYTES, GB, GIB
from pipeline.stages.accounting.cell import Settings
from pipeline.stages.accounting.models import Model, Transformer

Row = dict[str, Any]

# One token, then typical training contexts for models of this size.
LARGE_MODEL_SEQ_LENS = (1, 2048, 4096, 8192, 16384)
# The assignment's context lengths for its transformers, and its sequence lengths for attention alone.
CONTEXT_LENGTHS = (128, 256, 512, 1024)
ATTENTION_SEQ_LENS = (256, 1024, 4096, 8192, 16384)
DEVICE_COUNTS = tuple(2**power for power in range(3, 13))
RING_SIZES = (2, 4, 8, 64)
TENSOR_SIZES = tuple(2**power for power in range(7))
BATCH_STEPS = tuple(2 ** (step / 4) for step in range(-8, 9))


@dataclass(frozen=True)
class Asked:
    """What a question is about; without `seq_lens`, the question's default lengths apply."""

    model: Model
    settings: Settings
    batch_size: int = 1
    seq_lens: tuple[int, ...] = ()

    @property
    def state(self) -> TrainingState:
        """The training state of the model in fp32."""
        return training_state(self.model.parameters)

    def by_length(self) -> Iterator[tuple[int, int]]:
        """Yield each sequence length with its activation bytes."""
        for seq_len in self.seq_lens or LARGE_MODEL_SEQ_LENS:
            yield seq_len, self.model.activation_bytes(self.batch_size, seq_len)

    def workloads(self, usual: tuple[int, ...]) -> Iterator[tuple[Row, Workload]]:
        """Yield the training step for each kind of attention and sequence length; the model must be a Transformer."""
        assert isinstance(self.model, Transformer)
        for attention, seq_len in product(ATTENTIONS, self.seq_lens or usual):
            key = {"attention": attention, "seq_len": seq_len}
            yield key, self.model.workload(self.batch_size, seq_len, attention)


def answer(question: str, asked: Asked) -> list[Row]:
    """Return the rows that answer one of `cell.QUESTIONS`; the model must have what it needs (see `lacking`)."""
    return [{**asked.model.numbers, **row} for row in ANSWERS[question](asked)]


def _memory(asked: Asked) -> Iterator[Row]:
    memory = asked.settings.gpu_memory_gb
    for seq_len, activation_bytes in asked.by_length():
        sizes = {"state": asked.state.total_bytes, "total": asked.state.total_bytes + activation_bytes}
        yield {
            "seq_len": seq_len,
            "parameters": asked.model.parameters,
            **asdict(asked.state),
            "activation_bytes": activation_bytes,
            **{f"{name}_bytes": size for name, size in sizes.items()},
            **{f"{name}_gpus": devices_to_hold(size, memory * GB) for name, size in sizes.items()},
            **{f"{name}_gpus_of_gib": devices_to_hold(size, memory * GIB) for name, size in sizes.items()},
        }


def _fsdp(asked: Asked) -> Iterator[Row]:
    """Yield the memory of each of N devices that shard the state and half of the activations.

    The least N is None if the other half alone fills a device.
    """
    for seq_len, activation_bytes in asked.by_length():
        sharded = Sharded(asked.state.total_bytes + activation_bytes / 2, activation_bytes / 2)
        least = sharded.least_devices(asked.settings.device_memory_gb * GB)
        around_least = (least - 1, least) if least else ()
        for num_devices in sorted({*DEVICE_COUNTS, *around_least} - {0}):
            yield {
                "seq_len": seq_len,
                "state_bytes": asked.state.total_bytes,
                "activation_bytes": activation_bytes,
                "least_devices": least,
                "num_devices": num_devices,
                "bytes_per_device": sharded.bytes_per_device(num_devices),
            }


def _mesh(asked: Asked) -> Iterator[Row]:
    """Yield the least batch at which the forward pass is compute bound, on the given mesh and variations of it.

    Rows of case `batch` hold the times at batches around the given mesh's least one.
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
    overlapping = replace(given, axes_overlap=True)
    whole_splits = [y for y in TENSOR_SIZES if given.num_devices % y == 0 and y != given.tensor_size]
    cases = [
        ("given", given),
        ("overlap", overlapping),
        ("fp8_weights", replace(given, weight_bytes=1)),
        *(("split", _split(given, tensor_size)) for tensor_size in whole_splits),
        ("best_split", _split(given, mesh.best_tensor_size(block, given))),
        ("best_split_overlap", _split(overlapping, mesh.best_tensor_size(block, overlapping))),
    ]
    for case, varied in cases:
        yield _mesh_row(case, block, varied, mesh.least_tokens(block, varied))
    if math.isfinite(least := mesh.least_tokens(block, given)):
        yield from (_mesh_row("batch", block, given, step * least) for step in BATCH_STEPS)


def _split(given: Mesh, tensor_size: float) -> Mesh:
    """Return a mesh of the same devices with another tensor-parallel size."""
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
    times_ms = {f"{name}_ms": 1e3 * seconds for name, seconds in mesh.block_s(block, tokens, devices).items()}
    return {
        **shape,
        **times_ms,
        "tokens": tokens,
        "tokens_per_device": tokens / devices.num_devices,
        "whole_tokens_per_device": whole_per_device,
        "whole_tokens": whole_per_device * devices.num_devices,
    }


def _buckets(asked: Asked) -> Iterator[Row]:
    settings, gradient_bytes = asked.settings, asked.state.gradients_bytes
    link = LinearCost(1e-6 * settings.call_overhead_us, 1e9 * settings.allreduce_gbytes_per_s)
    best = gradient_bytes / buckets.best_bucket_bytes(gradient_bytes, link)
    counts = [2**power for power in range(math.ceil(math.log2(max(best, 2))) + 5)]
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


def _ring(asked: Asked) -> Iterator[Row]:
    """Yield the bytes each device sends if a ring step sends a share of the tensor, or the whole tensor N - 1 times.

    When sending the whole tensor, a device passes on the one it received last, starting with its own, and adds each one
    that it receives to its sum.
    """
    gradient_bytes = asked.state.gradients_bytes
    for case, num_devices in product(("shares", "whole"), RING_SIZES):
        factor = all_reduce_bus_factor(num_devices) if case == "shares" else num_devices - 1
        sent_bytes = factor * gradient_bytes
        yield {
            "case": case,
            "num_devices": num_devices,
            "gradient_bytes": gradient_bytes,
            "sent_bytes": sent_bytes,
            "ring_ms": 1e3 * sent_bytes / (1e9 * asked.settings.egress_gbytes_per_s),
        }


def _parallel(asked: Asked) -> Iterator[Row]:
    """Yield one feed-forward layer in each pass, on the most devices at which it stays compute bound.

    `most_devices` is not rounded. Data parallelism sends nothing in the forward pass, so it gets the backward pass's
    device count there.
    """
    settings = asked.settings
    flops_per_s, bytes_per_s = 1e12 * settings.peak_tflops_per_s, 1e9 * settings.egress_gbytes_per_s
    layer = Layer(asked.model.block, settings.batch_tokens, flops_per_s, bytes_per_s)
    for strategy, phase, axes_overlap in product(STRATEGIES, PASSES, (True, False)):
        if axes_overlap and strategy != "fsdp_tensor":
            continue
        x, y = feed_forward_parallel.most_shares(layer, strategy, phase, axes_overlap)
        whole_x, whole_y = feed_forward_parallel.most_whole_shares(layer, strategy, phase, axes_overlap)
        found = feed_forward_parallel.cost(layer, phase, x, y, keeps_weights=strategy == "data_parallel")
        yield {
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


def _activations(asked: Asked) -> Iterator[Row]:
    state_bytes = asked.state.total_bytes
    for key, workload in asked.workloads(CONTEXT_LENGTHS):
        parts = bytes_by_part(workload)
        kept = sum(parts.values())
        counts = {**parts, "activation": kept, "state": state_bytes, "total": state_bytes + kept}
        yield key | {f"{part}_bytes": count for part, count in counts.items()}


def _attention(asked: Asked) -> Iterator[Row]:
    for key, workload in asked.workloads(ATTENTION_SEQ_LENS):
        yield {
            **key,
            "head_dim": workload.size.head_dim,
            "score_matrix_bytes": FP32_BYTES * workload.score_elements,
            **{f"{part}_bytes": count for part, count in attention_bytes(workload).items()},
        }


# `rows` documents the columns and the values of `case`.
ANSWERS: dict[str, Callable[[Asked], Iterator[Row]]] = {
    "memory": _memory,
    "fsdp": _fsdp,
    "mesh": _mesh,
    "buckets": _buckets,
    "ring": _ring,
    "parallel": _parallel,
    "activations": _activations,
    "attention": _attention,
}
