"""The accounting section: what closed forms say of models and machines beyond the one at hand."""

import pandas as pd

from pipeline.formulas.units import GB
from pipeline.report.markup import Markdown, code
from pipeline.report.page_parts import Figure, Problem, Section, Table, say
from pipeline.report.section import count
from pipeline.stages.accounting.report import problems
from pipeline.stages.accounting.report.facts import by_question, least_devices, main_row, mesh_levers, of_one_model
from pipeline.stages.accounting.report.figures import mesh_times

TITLE = "What do closed forms say of models too large to measure?"
EXERCISE = "communication_accounting"
METHOD = Markdown(
    "Nothing here is measured; a GB is 10^9 bytes, a GiB 2^30. `python -m pipeline account` answers for any model and "
    "machine. D is the width, F that of the feed-forward layers, L the layers, H the heads, S the sequence length, T "
    "the tokens of a batch, X and Y the mesh for FSDP and tensor parallelism, C FLOP/s, W bytes/s of a link."
)
PROBLEMS = {
    "communication_accounting (a)": ("memory", problems.memory),
    "communication_accounting (b)": ("fsdp", problems.fsdp),
    "communication_accounting (c)": ("mesh", problems.mesh),
    "communication_accounting (d)": ("mesh", problems.levers),
    "ddp_bucketed_benchmarking (b)": ("buckets", problems.buckets),
    "alternate_ring_all_reduce": ("ring", problems.ring),
    "data_parallel_calcs": ("parallel", problems.data_parallel),
    "fsdp_calcs": ("parallel", problems.fully_sharded),
    "tp_calcs": ("parallel", problems.tensor_parallel),
    "fsdp_tp_calcs": ("parallel", problems.both_axes),
    "pytorch_attention": ("attention", problems.attention),
}


def build(rows: pd.DataFrame) -> Section:
    """Build the section from the rows of all its tables."""
    answers = of_one_model(by_question(rows))
    lacking = _lacking(rows)
    if not answers:
        return Section(TITLE, EXERCISE, lacking)
    parts: list[Markdown | Figure | Table] = []
    if "mesh" in answers:
        parts += _mesh_figure(answers["mesh"])
    if "activations" in answers:
        parts.append(problems.activations(answers["activations"]))
    answered = {name: answer(answers[question]) for name, (question, answer) in PROBLEMS.items() if question in answers}
    return Section(
        TITLE,
        EXERCISE,
        _answer(answers),
        parts=[*parts, *([lacking] if lacking else [])],
        method=METHOD,
        problems=[Problem(name, text) for name, text in answered.items() if text],
    )


def _answer(answers: dict[str, pd.DataFrame]) -> Markdown:
    sentences = []
    if "memory" in answers:
        row = main_row(answers["memory"])
        sentence = "The fp32 training state of {size}, {n} parameters, takes {state} GB: {gpus} GPUs of {capacity} GB."
        sentences.append(
            say(
                sentence,
                size=row["size"],
                n=count(row["parameters"]),
                state=count(row["state_bytes"] / GB),
                gpus=count(row["state_gpus"]),
                capacity=f"{row['setting_gpu_memory_gb']:g}",
            )
        )
    least = least_devices(answers["fsdp"]) if "fsdp" in answers else None
    if least is not None:
        sentence = "Sharded, with sequences of {seq_len} tokens, {n} devices hold it in less than {capacity} GB each."
        capacity = f"{least['setting_device_memory_gb']:g}"
        values = {"seq_len": count(least["seq_len"]), "n": count(least["least_devices"]), "capacity": capacity}
        sentences.append(say(sentence, **values))
    given = mesh_levers(answers["mesh"]).loc["given"] if "mesh" in answers else None
    if given is not None and pd.notna(given["tokens"]):
        sentence = "Its forward pass on {devices} devices is compute bound from {tokens} tokens per device on."
        values = {"devices": count(given["num_devices"]), "tokens": count(given["whole_tokens_per_device"])}
        sentences.append(say(sentence, **values))
    return Markdown(" ").join(sentences) or say("{n} questions have answers by formula.", n=len(answers))


def _mesh_figure(mesh: pd.DataFrame) -> list[Figure]:
    drawing, given = mesh_times(mesh), mesh_levers(mesh).loc["given"]
    if drawing is None:
        return []
    title = "From {tokens} tokens per device on, computing a block takes longer than both of its transfers"
    return [Figure("mesh", say(title, tokens=count(given["whole_tokens_per_device"])), drawing)]


def _lacking(rows: pd.DataFrame) -> Markdown:
    """Say which questions have no answer, and why."""
    missing = rows[rows["status"] != "ok"].fillna({"reason": "nothing is known of why"})
    sentences = [
        say(
            "{question} of {size} has no answer: {reason}.",
            question=code(question),
            size=size,
            reason=reason.rstrip("."),
        )
        for question, size, reason in missing[["question", "size", "reason"]].drop_duplicates().itertuples(index=False)
    ]
    return Markdown(" ").join(sentences)
