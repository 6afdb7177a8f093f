"""The options of `python -m pipeline account`."""

import argparse
from dataclasses import dataclass, fields

from pipeline.cells.fields import axis
from pipeline.stages.accounting.cell import QUESTIONS, Settings
from pipeline.stages.accounting.models import NAMES, XXL


@dataclass(frozen=True)
class Subject:
    """The model and its batch; with `num_heads` it is a transformer, without one the feed-forward blocks alone."""

    size: str = axis("XXL", allowed=NAMES)
    d_model: int = axis(XXL.d_model, minimum=1)
    d_ff: int = axis(XXL.d_ff, minimum=1)
    num_blocks: int = axis(XXL.num_blocks, minimum=1)
    num_heads: int = axis(1, minimum=1)
    batch_size: int = axis(1, minimum=1)
    seq_len: int = axis(4096, minimum=1)


# What a named size brings along, and an option replaces.
OF_SIZE = ("d_model", "d_ff", "num_blocks", "num_heads")
METAVARS = {str: "NAME", int: "N", float: "X"}
HELP = {
    "size": f"a model by name: {', '.join(NAMES)}",
    "d_model": "width of the residual stream",
    "d_ff": "width of the feed-forward layers",
    "num_blocks": "feed-forward blocks, or layers of a transformer",
    "num_heads": "attention heads; make XXL, feed-forward blocks alone, a transformer",
    "batch_size": "sequences in the batch",
    "seq_len": "tokens in a sequence",
    "vocab_size": "vocabulary of a transformer",
    "gpu_memory_gb": "memory: of one GPU",
    "device_memory_gb": "fsdp: memory of one device",
    "fsdp_size": "mesh: devices along the FSDP dimension, X",
    "tensor_size": "mesh: devices along the tensor-parallel dimension, Y",
    "fsdp_axes": "mesh: axes of the torus for FSDP, M_X",
    "tensor_axes": "mesh: axes of the torus for tensor parallelism, M_Y",
    "link_gbytes_per_s": "mesh: bandwidth of a link, both directions, W",
    "peak_tflops_per_s": "mesh: dense peak of a device, C",
    "allreduce_gbytes_per_s": "buckets: algorithm bandwidth of the all-reduce, w",
    "call_overhead_us": "buckets: what one call costs whatever its size, o",
    "egress_gbytes_per_s": "ring, parallel: what a device sends, W",
    "batch_tokens": "parallel: tokens over all devices, T",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the questions, and an option for each field of Subject and Settings, with its unit in its name."""
    parser.add_argument("questions", nargs="*", metavar="QUESTION", help=f"of {', '.join(QUESTIONS)} (default: all)")
    for title, declared in {"model": fields(Subject), "machine": fields(Settings)}.items():
        group = parser.add_argument_group(title)
        for field in declared:
            default = "the model's" if field.name in OF_SIZE else field.default
            flag, metavar = f"--{field.name.replace('_', '-')}", METAVARS[type(field.default)]
            group.add_argument(flag, metavar=metavar, help=f"{HELP[field.name]} (default: {default})")


def given_options(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the options that were given, as the words that they were given in."""
    named = {name: getattr(arguments, name) for name in HELP}
    return {name: value for name, value in named.items() if value is not None}
