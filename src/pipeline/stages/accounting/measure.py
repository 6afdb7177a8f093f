"""Answer an accounting cell by evaluating closed forms; nothing is measured."""

from collections.abc import Callable
from typing import Any

from pipeline.errors import Skipped
from pipeline.formulas.collectives import LinearCost
from pipeline.formulas.feed_forward_parallel import Layer
from pipeline.formulas.mesh import Mesh
from pipeline.instruments.sampling.stopwatch import Stopwatch
from pipeline.stages.accounting import questions
from pipeline.stages.accounting.cell import Cell, Settings
from pipeline.stages.accounting.models import Model, as_transformer, model_named
from pipeline.stages.accounting.questions import Rows

# One token, then typical training contexts for models of this size.
LARGE_MODEL_SEQ_LENS = (1, 2048, 4096, 8192, 16384)
# The assignment's context lengths for its transformers, and its sequence lengths for attention alone.
CONTEXT_LENGTHS = (128, 256, 512, 1024)
ATTENTION_SEQ_LENS = (256, 1024, 4096, 8192, 16384)


def measure(cell: Cell, settings: Settings, stopwatch: Stopwatch) -> Rows:
    """Return the rows that answer the cell's question; the time counts as set-up.

    Raises Skipped if the model lacks what the question is about.
    """
    model = model_named(cell.size, settings.vocab_size)
    lacking = questions.lacking(cell.question, model)
    if lacking:
        raise Skipped(f"{cell.size} has no {lacking}")
    return [{**model.numbers, **row, "status": "ok"} for row in ANSWERS[cell.question](model, cell, settings)]


def mesh_of(settings: Settings) -> Mesh:
    """Return the mesh that the settings describe."""
    return Mesh(
        fsdp_size=settings.fsdp_size,
        tensor_size=settings.tensor_size,
        fsdp_axes=settings.fsdp_axes,
        tensor_axes=settings.tensor_axes,
        link_bytes_per_s=1e9 * settings.link_gbytes_per_s,
        flops_per_s=1e12 * settings.peak_tflops_per_s,
    )


def link_of(settings: Settings) -> LinearCost:
    """Return the all-reduce that the settings describe."""
    return LinearCost(latency_s=1e-6 * settings.call_overhead_us, bytes_per_s=1e9 * settings.allreduce_gbytes_per_s)


def layer_of(model: Model, settings: Settings) -> Layer:
    """Return one feed-forward layer of the model, with the tokens and the device of the settings."""
    return Layer(
        block=model.block,
        tokens=settings.batch_tokens,
        flops_per_s=1e12 * settings.peak_tflops_per_s,
        bytes_per_s=1e9 * settings.egress_gbytes_per_s,
    )


ANSWERS: dict[str, Callable[[Model, Cell, Settings], list[dict[str, Any]]]] = {
    "memory": lambda model, cell, settings: questions.memory_rows(
        model, cell.batch_size, LARGE_MODEL_SEQ_LENS, settings.gpu_memory_gb
    ),
    "fsdp": lambda model, cell, settings: questions.fsdp_rows(
        model, cell.batch_size, LARGE_MODEL_SEQ_LENS, settings.device_memory_gb
    ),
    "mesh": lambda model, cell, settings: questions.mesh_rows(model, mesh_of(settings)),
    "buckets": lambda model, cell, settings: questions.bucket_rows(model, link_of(settings)),
    "ring": lambda model, cell, settings: questions.ring_rows(model, 1e9 * settings.egress_gbytes_per_s),
    "parallel": lambda model, cell, settings: questions.parallel_rows(layer_of(model, settings)),
    "activations": lambda model, cell, settings: questions.activation_rows(
        as_transformer(model), cell.batch_size, CONTEXT_LENGTHS
    ),
    "attention": lambda model, cell, settings: questions.attention_rows(
        as_transformer(model), cell.batch_size, ATTENTION_SEQ_LENS
    ),
}
