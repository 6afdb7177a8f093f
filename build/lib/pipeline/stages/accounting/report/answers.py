"""What `python -m pipeline account` prints: the stage's closed forms for any model on any machine."""

from dataclasses import fields, replace
from typing import Any

import pandas as pd

from pipeline.cells.fields import build
from pipeline.errors import UserError
from pipeline.formulas.sizes import ModelSize
from pipeline.formulas.units import GB, GIB
from pipeline.report.tables import markdown, significant
from pipeline.stages.accounting.cell import QUESTIONS, Settings
from pipeline.stages.accounting.models import FeedForwardModel, Model, Transformer, lacking, model_named
from pipeline.stages.accounting.options import OF_SIZE, Subject
from pipeline.stages.accounting.questions import Asked, Row, answer
from pipeline.stages.accounting.report.words import MESH_CASES, PARALLEL_CASES


def answers(asked: list[str], given: dict[str, str]) -> str:
    """Answer questions (all that the model admits where none is asked) about what the given options describe.

    Raises UserError, one line, for an unknown question, a value that is not allowed, or a question that the model has
    no answer to.
    """
    for question in asked:
        if question not in QUESTIONS:
            raise UserError(f"account: unknown question '{question}': must be one of {', '.join(QUESTIONS)}")
    names = {field.name for field in fields(Subject)}
    subject = build(Subject, {name: value for name, value in given.items() if name in names}, "account")
    settings = build(Settings, {name: value for name, value in given.items() if name not in names}, "account")
    model = _model(subject, set(given), settings.vocab_size)
    chosen = asked or [question for question in QUESTIONS if not lacking(question, model)]
    about = Asked(model, settings, subject.batch_size, (subject.seq_len,))
    return "\n\n".join([_describe(model, subject), *(_answer(question, about) for question in chosen)])


def _model(subject: Subject, given: set[str], vocab_size: int) -> Model:
    """Return the named model, with the numbers that were given in place of its own."""
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
        else f"{model.numbers['num_blocks']} feed-forward blocks alone"
    )
    return f"{kind}, d_model {block.d_model:,}, d_ff {block.d_ff:,}: {model.parameters:,} parameters; {batch}"


def _answer(question: str, asked: Asked) -> str:
    missing = lacking(question, asked.model)
    if missing:
        raise UserError(f"account: {question} is about {missing}, which this model lacks; see --size and --num-heads")
    return f"### {question}\n\n{TABLES[question](answer(question, asked), asked.settings)}"


def _memory(rows: list[Row], settings: Settings) -> str:
    [row] = rows
    gpus = f"GPUs of {settings.gpu_memory_gb:g}"
    counts = {f"{gpus} GB": row["total_gpus"], f"{gpus} GiB": row["total_gpus_of_gib"]}
    return f"{_sizes(row)}\n\n{_lines(counts)}"


def _fsdp(rows: list[Row], settings: Settings) -> str:
    least = rows[0]["least_devices"]
    capacity = f"{settings.device_memory_gb:g} GB"
    if least is None:
        return f"No number of devices is enough: the half of the activations on each of them alone fills {capacity}."
    [row] = [row for row in rows if row["num_devices"] == least]
    return f"Devices that each hold less than {capacity}: {least:,}\n\n{_sizes(row)}"


def _mesh(answers: list[Row], _settings: Settings) -> str:
    rows = pd.DataFrame(row for row in answers if row["case"] != "batch")
    never = rows["tokens"].isna()
    table = pd.DataFrame(
        {
            "mesh": rows["case"].map(MESH_CASES),
            "X (FSDP)": rows["fsdp_size"].map("{:.4g}".format),
            "Y (tensor)": rows["tensor_size"].map("{:.4g}".format),
            "tokens per device": rows["whole_tokens_per_device"].map("{:,.0f}".format).mask(never, "never"),
            "tokens overall": rows["whole_tokens"].map("{:,.0f}".format).mask(never, "never"),
        }
    )
    return f"Batch from which the forward pass of the feed-forward layers is compute bound:\n\n{markdown(table)}"


def _buckets(answers: list[Row], _settings: Settings) -> str:
    rows = {row["case"]: row for row in answers}
    best = rows["best"]
    return _lines(
        {
            "gradients in fp32": f"{significant(best['gradient_bytes'] / GB)} GB",
            "best bucket size": f"{significant(best['bucket_bytes'] / 1e6)} MB",
            "buckets": significant(best["num_buckets"]),
            "overhead with them": f"{significant(best['overhead_ms'])} ms",
            "overhead of one call after backward": f"{significant(rows['one_call']['overhead_ms'])} ms",
        }
    )


def _ring(answers: list[Row], _settings: Settings) -> str:
    rows = pd.DataFrame(answers)
    times = rows.pivot(index="num_devices", columns="case", values="ring_ms").map(significant).reset_index()
    times.columns = ["devices", "shares (ms)", "whole tensors (ms)"]
    title = f"All-reducing {significant(rows['gradient_bytes'].iloc[0] / GB)} GB of gradients around a ring:"
    return f"{title}\n\n{markdown(times)}"


def _parallel(answers: list[Row], settings: Settings) -> str:
    rows = pd.DataFrame(answers)
    table = pd.DataFrame(
        {
            "strategy": [PARALLEL_CASES[key] for key in zip(rows["strategy"], rows["axes_overlap"], strict=True)],
            "pass": rows["phase"],
            "most devices": rows["most_devices"].map(significant),
            "batch × width": rows["batch_shares"].map(significant) + " × " + rows["width_shares"].map(significant),
            "FLOPs": rows["device_flops"].map("{:.3g}".format),
            "sent (MB)": ((rows["weight_bytes"] + rows["activation_bytes"]) / 1e6).map(significant),
            "computing (ms)": rows["compute_ms"].map(significant),
            "communicating (ms)": rows["communication_ms"].map(significant),
        }
    )
    title = f"One feed-forward layer, {settings.batch_tokens:,} tokens, on the most devices that stay compute bound:"
    return f"{title}\n\n{markdown(table)}"


def _activations(rows: list[Row], _settings: Settings) -> str:
    sizes = pd.DataFrame({f"{row['attention']} (GB)": _byte_columns(row) for row in rows})
    return markdown((sizes / GB).map(significant).reset_index(names=""))


def _attention(rows: list[Row], settings: Settings) -> str:
    return f"One layer:\n\n{_activations(rows, settings)}"


TABLES = {
    "memory": _memory,
    "fsdp": _fsdp,
    "mesh": _mesh,
    "buckets": _buckets,
    "ring": _ring,
    "parallel": _parallel,
    "activations": _activations,
    "attention": _attention,
}


def _lines(facts: dict[str, Any]) -> str:
    return markdown(pd.DataFrame({"": list(facts), "value": [str(value) for value in facts.values()]}))


def _byte_columns(row: dict[str, Any]) -> dict[str, float]:
    """Return what a row counts in bytes, by its name in words."""
    named = {name: value for name, value in row.items() if "bytes" in name.split("_")}
    return {" ".join(part for part in name.split("_") if part != "bytes"): value for name, value in named.items()}


def _sizes(row: dict[str, Any]) -> str:
    sizes = pd.Series(_byte_columns(row))
    columns = {name: (sizes / unit).map(significant) for name, unit in {"GB": GB, "GiB": GIB}.items()}
    return markdown(pd.DataFrame(columns).reset_index(names=""))
