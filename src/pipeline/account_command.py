"""The command `account`: the accounting stage's closed forms for any model on any machine."""

import argparse
from dataclasses import asdict, dataclass, fields, replace

import pandas as pd

from pipeline.cells.fields import axis, build
from pipeline.cells.stage import SETTING
from pipeline.errors import UserError
from pipeline.formulas.sizes import ModelSize
from pipeline.report.markup import plain
from pipeline.stages.accounting.cell import QUESTIONS, Settings
from pipeline.stages.accounting.models import NAMES, XXL, FeedForwardModel, Model, Transformer, lacking, model_named
from pipeline.stages.accounting.questions import Asked, answer
from pipeline.stages.accounting.report import table


@dataclass(frozen=True)
class Subject:
    """The model and its batch; a model without `num_heads` is feed-forward blocks only, not a transformer."""

    size: str = axis("XXL", allowed=NAMES)
    d_model: int = axis(XXL.d_model, minimum=1)
    d_ff: int = axis(XXL.d_ff, minimum=1)
    num_blocks: int = axis(XXL.num_blocks, minimum=1)
    num_heads: int = axis(1, minimum=1)
    batch_size: int = axis(1, minimum=1)
    seq_len: int = axis(4096, minimum=1)


# Set by a named size, unless an option overrides them.
OF_SIZE = ("d_model", "d_ff", "num_blocks", "num_heads")
METAVARS = {str: "NAME", int: "N", float: "X"}
HELP = {
    "size": f"a model by name: {', '.join(NAMES)}",
    "d_model": "width of the residual stream",
    "d_ff": "width of the feed-forward layers",
    "num_blocks": "feed-forward blocks, or layers of a transformer",
    "num_heads": "attention heads; turns XXL, which is feed-forward blocks only, into a transformer",
    "batch_size": "sequences in the batch",
    "seq_len": "tokens in a sequence",
    "vocab_size": "vocabulary of a transformer",
    "gpu_memory_gb": "memory: memory of one GPU",
    "device_memory_gb": "fsdp: memory of one device",
    "fsdp_size": "mesh: devices along the FSDP dimension, X",
    "tensor_size": "mesh: devices along the tensor-parallel dimension, Y",
    "fsdp_axes": "mesh: axes of the torus for FSDP, M_X",
    "tensor_axes": "mesh: axes of the torus for tensor parallelism, M_Y",
    "link_gbytes_per_s": "mesh: bandwidth of a link, both directions, W",
    "peak_tflops_per_s": "mesh: dense peak of a device, C",
    "allreduce_gbytes_per_s": "buckets: algorithm bandwidth of the all-reduce, w",
    "call_overhead_us": "buckets: fixed cost of a call, o",
    "egress_gbytes_per_s": "ring, parallel: egress bandwidth of a device, W",
    "batch_tokens": "parallel: tokens in the batch, over all devices, T",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the questions, and an option for each field of Subject and Settings."""
    parser.add_argument(
        "questions", nargs="*", metavar="QUESTION", help=f"any of {', '.join(QUESTIONS)} (default: all)"
    )
    for title, declared in {"model": fields(Subject), "machine": fields(Settings)}.items():
        group = parser.add_argument_group(title)
        for field in declared:
            default = "the model's" if field.name in OF_SIZE else field.default
            flag, metavar = f"--{field.name.replace('_', '-')}", METAVARS[type(field.default)]
            group.add_argument(flag, metavar=metavar, help=f"{HELP[field.name]} (default: {default})")


def account(arguments: argparse.Namespace) -> str:
    """Answer the command line's questions as text; raises UserError, also if a result overflows a float."""
    given = {name: value for name in HELP if (value := getattr(arguments, name)) is not None}
    try:
        return answers(arguments.questions, given)
    except (ZeroDivisionError, OverflowError):
        # Every option's minimum is well above zero, so the largest value is to blame.
        name = max((name for name in given if name != "size"), key=lambda name: float(given[name]))
        raise UserError(f"account: {name} must be smaller, got {given[name]}: a result overflows a float") from None


def answers(questions: list[str], given: dict[str, str]) -> str:
    """Answer the questions, or all that fit the model if none is asked; raises UserError for one that does not fit."""
    for question in questions:
        if question not in QUESTIONS:
            raise UserError(f"account: unknown question '{question}': must be one of {', '.join(QUESTIONS)}")
    names = {field.name for field in fields(Subject)}
    subject = build(Subject, {name: value for name, value in given.items() if name in names}, "account")
    settings = build(Settings, {name: value for name, value in given.items() if name not in names}, "account")
    model = _model(subject, set(given), settings.vocab_size)
    chosen = questions or [question for question in QUESTIONS if not lacking(question, model)]
    about = Asked(model, settings, subject.batch_size, (subject.seq_len,))
    return "\n\n".join([_describe(model, subject), *(_answer(question, subject.size, about) for question in chosen)])


def _model(subject: Subject, given: set[str], vocab_size: int) -> Model:
    """Return the named model, its numbers overridden by those given."""
    replaced = {name: getattr(subject, name) for name in OF_SIZE if name in given}
    named = model_named(subject.size, vocab_size)
    numbers = {**named.numbers, **replaced}
    if "num_heads" not in numbers:
        return FeedForwardModel(**numbers)
    if numbers["d_model"] % numbers["num_heads"]:
        raise UserError(f"account: num_heads must divide d_model {numbers['d_model']}, got {numbers['num_heads']}")
    numbers["num_layers"] = numbers.pop("num_blocks")
    size = replace(named.size, **numbers) if isinstance(named, Transformer) else ModelSize(**numbers)
    return Transformer(size, vocab_size)


def _describe(model: Model, subject: Subject) -> str:
    block, batch = model.block, f"batch {subject.batch_size} × {subject.seq_len:,} tokens"
    kind = (
        f"Transformer, {model.size.num_layers} layers of {model.size.num_heads} heads"
        if isinstance(model, Transformer)
        else f"{model.numbers['num_blocks']} feed-forward blocks only"
    )
    return f"{kind}, d_model {block.d_model:,}, d_ff {block.d_ff:,}: {model.parameters:,} parameters; {batch}"


def _answer(question: str, size: str, asked: Asked) -> str:
    missing = lacking(question, asked.model)
    if missing:
        raise UserError(f"account: {question} needs {missing}, which this model lacks: see --size and --num-heads")
    settings = {SETTING + name: value for name, value in asdict(asked.settings).items()}
    rows = pd.DataFrame(answer(question, asked)).assign(size=size, batch_size=asked.batch_size, **settings)
    return f"### {question}\n\n{plain(table(question, rows).markdown())}"
