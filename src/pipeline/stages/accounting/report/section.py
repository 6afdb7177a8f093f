"""The accounting section: what closed forms say of models and machines beyond the one at hand."""

import pandas as pd

from pipeline.formulas.units import GB
from pipeline.report.markup import Markdown, code
from pipeline.report.page_parts import MOST_TABLE_ROWS, Figure, Problem, Section, Table, say
from pipeline.report.section import count
from pipeline.report.tables import significant
from pipeline.stages.accounting.report import problems
from pipeline.stages.accounting.report.facts import by_question, least_devices, main_row, mesh_levers, of_one_model
from pipeline.stages.accounting.report.figures import mesh_times
from pipeline.stages.accounting.report.words import MESH_CASES

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
        parts += _mesh_parts(answers["mesh"])
    if "fsdp" in answers:
        parts.append(_fsdp_table(answers["fsdp"]))
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


def _mesh_parts(mesh: pd.DataFrame) -> list[Figure | Table]:
    cases = mesh_levers(mesh)
    given = cases.loc["given"]
    never = cases["tokens"].isna()
    table = pd.DataFrame(
        {
            "mesh": cases.index.map(MESH_CASES),
            "X": cases["fsdp_size"].map("{:.4g}".format),
            "Y": cases["tensor_size"].map("{:.4g}".format),
            "tokens per device": cases["whole_tokens_per_device"].map(_whole).mask(never, "never"),
            "tokens overall": cases["whole_tokens"].map(_whole).mask(never, "–"),
            "of that as given": (cases["tokens"] / given["tokens"]).map(significant).replace("n/a", "–"),
        }
    )
    parts: list[Figure | Table] = []
    drawing = mesh_times(mesh)
    if drawing is not None:
        sentence = "From {tokens} tokens per device on, computing a block takes longer than both of its transfers"
        parts.append(Figure("mesh", say(sentence, tokens=count(given["whole_tokens_per_device"])), drawing))
    title = Markdown("Least batch with which the forward pass is compute bound; of other whole splits the best:")
    return [*parts, Table(title, table)]


def _fsdp_table(rows: pd.DataFrame) -> Table:
    lines = rows.drop_duplicates(["batch_size", "seq_len"]).sort_values(["batch_size", "seq_len"]).head(MOST_TABLE_ROWS)
    held = rows[rows["num_devices"] == rows["least_devices"]].set_index(["batch_size", "seq_len"])["bytes_per_device"]
    table = pd.DataFrame(
        {
            "sequence length": lines["seq_len"],
            "half of the activations (GB)": (lines["activation_bytes"] / 2 / GB).map(significant),
            "least devices": lines["least_devices"].map(_whole).replace("n/a", "none is enough"),
            "each holds (GB)": [
                significant(held.get(key, float("nan")) / GB).replace("n/a", "–")
                for key in zip(lines["batch_size"], lines["seq_len"], strict=True)
            ],
        }
    )
    capacity = f"{rows['setting_device_memory_gb'].iloc[0]:g}"
    sentence = "Devices of {capacity} GB that hold state and activations, with half of these sharded:"
    return Table(say(sentence, capacity=capacity), table)


def _whole(value: float) -> str:
    return count(value) if pd.notna(value) else "n/a"


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
