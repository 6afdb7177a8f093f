"""The accounting section: what closed forms say of models and machines beyond the one at hand."""

import pandas as pd

from pipeline.formulas.units import GB
from pipeline.report.markup import Markdown, code
from pipeline.report.page_parts import Figure, Problem, Section, say
from pipeline.stages.accounting.report import problems
from pipeline.stages.accounting.report.facts import by_question, least_devices, main_row, mesh_levers, of_one_model
from pipeline.stages.accounting.report.figures import mesh_times

TITLE = "What do closed forms say about models too large to measure?"
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
    answered = {name: answer(answers[question]) for name, (question, answer) in PROBLEMS.items() if question in answers}
    return Section(
        TITLE,
        EXERCISE,
        _answer(answers),
        parts=[
            *(_mesh_figure(answers["mesh"]) if "mesh" in answers else []),
            problems.activations(answers["activations"]) if "activations" in answers else "",
            lacking,
        ],
        method=METHOD,
        problems=[Problem(name, text) for name, text in answered.items() if text],
    )


def _answer(answers: dict[str, pd.DataFrame]) -> str:
    sentences = []
    if "memory" in answers:
        row = main_row(answers["memory"])
        sentences.append(
            f"The fp32 training state of {row['size']}, {row['parameters']:,} parameters, takes "
            f"{row['state_bytes'] / GB:,.0f} GB: {row['state_gpus']:,} GPUs of {row['setting_gpu_memory_gb']:g} GB."
        )
    least = least_devices(answers["fsdp"]) if "fsdp" in answers else None
    if least is not None:
        sentences.append(
            f"Sharded, with sequences of {least['seq_len']:,} tokens, {least['least_devices']:,.0f} devices hold it in "
            f"less than {least['setting_device_memory_gb']:g} GB each."
        )
    given = mesh_levers(answers["mesh"]).loc["given"] if "mesh" in answers else None
    if given is not None and pd.notna(given["tokens"]):
        sentences.append(
            f"Its forward pass on {given['num_devices']:,.0f} devices is compute bound from "
            f"{given['whole_tokens_per_device']:,.0f} tokens per device on."
        )
    return " ".join(sentences) or f"{len(answers)} questions have answers by formula."


def _mesh_figure(mesh: pd.DataFrame) -> list[Figure]:
    if not (mesh["case"] == "batch").any():  # no batch is compute bound
        return []
    tokens = f"From {mesh_levers(mesh).loc['given', 'whole_tokens_per_device']:,.0f} tokens per device on"
    return [Figure("mesh", f"{tokens}, computing a block takes longer than both of its transfers", mesh_times(mesh))]


def _lacking(rows: pd.DataFrame) -> Markdown:
    """Say which questions have no answer, and why."""
    missing = rows[rows["status"] != "ok"].fillna({"reason": "nothing is known of why"})
    told = missing[["question", "size", "reason"]].drop_duplicates().itertuples(index=False, name=None)
    return Markdown(" ").join(
        say("{asked} of {size} has no answer: {why}.", asked=code(question), size=size, why=reason.rstrip("."))
        for question, size, reason in told
    )
