"""The accounting section: what closed forms say of models and machines beyond the one at hand."""

from collections.abc import Mapping

import pandas as pd

from pipeline.formulas.units import GB
from pipeline.report.chart import Axis, Chart
from pipeline.report.formats import count
from pipeline.report.section import Section, say
from pipeline.stages.accounting.cell import QUESTIONS
from pipeline.stages.accounting.report_tables import TABLES, given_mesh, least_devices, main_row, whole_or

MESH_TIMES = {
    "compute_ms": "computation",
    "communication_ms": "communication, both in turn",
    "fsdp_ms": "gathering weights (FSDP)",
    "tensor_ms": "moving activations (tensor)",
}


def build(rows: pd.DataFrame, beside: Mapping[str, pd.DataFrame]) -> Section:
    """Return the section of the accounting stage: of each question the answers about the first model asked of."""
    asked = {question: rows[(rows["question"] == question) & (rows["status"] == "ok")] for question in QUESTIONS}
    found = {question: each[each["size"] == each["size"].iloc[0]] for question, each in asked.items() if len(each)}
    return Section(
        _answer(found),
        [_mesh_chart(found["mesh"])] if "mesh" in found else [],
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
