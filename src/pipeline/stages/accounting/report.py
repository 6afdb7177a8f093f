"""The accounting section: what closed forms say of models and machines beyond the one at hand."""

from collections.abc import Mapping

import pandas as pd

from pipeline.formulas.mesh import Mesh
from pipeline.formulas.units import GB
from pipeline.report.chart import Axis, Chart
from pipeline.report.formats import count, number, text
from pipeline.report.frame import known, with_figures
from pipeline.report.section import Section, say
from pipeline.report.table import Columns, Table
from pipeline.stages.accounting.cell import QUESTIONS
from pipeline.stages.accounting.report_tables import TABLES, given_mesh, least_devices, main_row, whole_or

MESH_TIMES = {
    "compute_ms": "computation",
    "communication_ms": "communication, both in turn",
    "fsdp_ms": "gathering weights (FSDP)",
    "tensor_ms": "moving activations (tensor)",
}

# What FSDP calls to gather weights, and what tells its rate where that was not measured.
GATHERING = ("all_gather", "all_reduce")


def build(rows: pd.DataFrame, beside: Mapping[str, pd.DataFrame]) -> Section:
    """Return the section of the accounting stage: of each question the answers about the first model asked of.

    beside: ceilings and collectives, for what this machine's GPUs do and send.
    """
    asked = {question: rows[(rows["question"] == question) & (rows["status"] == "ok")] for question in QUESTIONS}
    found = {question: each[each["size"] == each["size"].iloc[0]] for question, each in asked.items() if len(each)}
    return Section(
        _answer(found),
        [*([_mesh_chart(found["mesh"])] if "mesh" in found else []), _here(beside)],
        for_course=[TABLES[question](each) for question, each in found.items()],
    )


def _answer(found: Mapping[str, pd.DataFrame]) -> str:
    if not {"memory", "fsdp", "mesh"} <= set(found):
        return say("{answered} questions are answered by formula.", answered=len(found))
    memory, fsdp, mesh = main_row(found["memory"]), least_devices(found["fsdp"]), given_mesh(found["mesh"])
    held = main_row(fsdp)
    return say(
        "{size}, with {parameters}B parameters, has a training state of {state} GB: {gpus} GPUs of {gpu} GB. "
        "FSDP with {seq_len} tokens per device takes {least} devices of {device} GB. To keep {devices} devices compute "
        "bound takes {tokens} tokens per device.",
        size=memory["size"],
        parameters=count(memory["parameters"] / 1e9),
        state=count(memory["state_bytes"] / GB),
        gpus=count(memory["state_gpus"]),
        gpu=f"{memory['setting_gpu_memory_gb']:g}",
        device=f"{held['setting_device_memory_gb']:g}",
        seq_len=count(held["seq_len"]),
        least=held["least"],
        devices=count(mesh["num_devices"]),
        tokens=whole_or(mesh["whole_tokens_per_device"], "never"),
    )


def _mesh_chart(rows: pd.DataFrame) -> Chart:
    line = rows[rows["case"] == "batch"].sort_values("tokens", kind="stable")
    points = [line.assign(what=words, block_ms=line[name]) for name, words in MESH_TIMES.items()]
    tokens = whole_or(given_mesh(rows)["whole_tokens_per_device"], "none")
    return Chart(
        "mesh_times",
        f"Compute bound from {tokens} tokens per device on: a block's times by formula",
        pd.concat(points, ignore_index=True),
        "line",
        Axis("tokens_per_device", "tokens per device"),
        Axis("block_ms", "ms"),
        "what",
    )


def _here(beside: Mapping[str, pd.DataFrame]) -> Table:
    """Write from how many tokens on FSDP is compute bound on this machine, by its measured C and W; bf16 weights."""
    products = known(beside.get("ceilings", pd.DataFrame()), "tflops_per_s", "dtype")
    peak = products.loc[products["dtype"] == "bf16", "tflops_per_s"].max() if len(products) else float("nan")
    calls = known(beside.get("collectives", pd.DataFrame()), "busbw_gb_per_s")
    rows = []
    if len(calls) and pd.notna(peak):
        sent = with_figures(calls[(calls["backend"] == "nccl") & calls["collective"].isin(GATHERING)])
        for ranks, own in sent.groupby("world_size"):
            # Where no all-gather was measured: a ring's all-reduce sends at the same rate.
            name = next(each for each in GATHERING if each in set(own["collective"]))
            rate = own.loc[own["collective"] == name, "busbw_gb_per_s"].max()
            mesh = Mesh(float(ranks), 1, 1, 1, link_bytes_per_s=1e9 * rate, flops_per_s=1e12 * peak)
            told = {"ranks": ranks, "tflops": peak, "rate": rate, "of": name.replace("_", "-")}
            rows.append(told | {"intensity": mesh.intensity, "tokens": mesh.intensity * mesh.weight_bytes / 2})
    columns: Columns = [
        ("GPUs", "ranks", count),
        ("C: bf16 products (TFLOP/s)", "tflops", number),
        ("W: bus bandwidth (GB/s)", "rate", number),
        ("of", "of", text),
        ("C / W (FLOPs a byte)", "intensity", count),
        ("tokens per GPU", "tokens", count),
    ]
    caption = "FSDP on this machine: from so many tokens per GPU on, computing hides the gathering of bf16 weights:"
    return Table("here", caption, pd.DataFrame(rows, columns=[name for _, name, _ in columns]), columns)
