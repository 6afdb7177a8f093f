"""The accounting section, and a table a question: also those of `python -m pipeline account`, for any model."""

from collections.abc import Callable, Mapping

import pandas as pd

from pipeline.formulas.training_state import devices_to_hold
from pipeline.formulas.units import BF16_BYTES, GB, GIB
from pipeline.report import ways
from pipeline.report.chart import Chart
from pipeline.report.formats import count, written
from pipeline.report.frame import having, with_values
from pipeline.report.section import Section
from pipeline.report.table import Table
from pipeline.report.words import Words
from pipeline.stages.accounting.cell import READS

WORDS = Words(__file__)
# The sequence length to answer with, where the question leaves it open.
PREFERRED_SEQ_LEN = 4096
ACROSS = {"ring": "num_devices", "parallel": "phase"}
CASES = {"_": " ", "^whole$": "the whole tensor", "^split$": "another split"}
# The mesh of the settings first, then tricks, then other splits of its devices.
MESH_ORDER = {"given": 0, "split": 2}
UNITS = {"GB": GB, "GiB": GIB}
# What the course's page shows of the questions; of the rest other stages' tables hold formula and recording together.
IN_COURSE = ("memory", "fsdp", "mesh", "ring", "parallel")
STATE = ("weights", "gradients", "optimizer", "state", "activation", "total")
MESH_TIMES = {
    "compute_ms": "computation",
    "communication_ms": "communication, both in turn",
    "fsdp_ms": "gathering weights (FSDP)",
    "tensor_ms": "moving activations (tensor)",
}
COLUMNS = {
    "memory": "bytes_of size_bytes GiB GPUs_of_GB GPUs_of_GiB",
    "fsdp": "seq_len state_bytes activation_bytes not_sharded_bytes devices on_each_bytes",
    "mesh": "case fsdp_size tensor_size tokens_per_device tokens_overall compute_ms fsdp_ms tensor_ms",
    "buckets": "case num_buckets bucket_bytes overhead_ms",
    "ring": "case num_devices sent_bytes ring_ms",
    "parallel": "strategy phase most_devices whole_split tflop_each sent compute_ms",
    "activations": "attention seq_len norms_bytes attention_bytes scores_bytes feed_forward_bytes head_bytes "
    "activation_bytes total_bytes",
    "attention": "attention seq_len inputs_bytes score_matrix_bytes kept_bytes most_bytes",
}


def build(rows: pd.DataFrame, beside: Mapping[str, pd.DataFrame]) -> Section:
    """Return the section of the accounting stage: of each question the answers about the first model asked of.

    beside: ceilings and collectives, for what this machine's GPUs do and send.
    """
    asked = with_values(rows).groupby("question")
    found = {str(question): each[each["size"] == each["size"].iloc[0]] for question, each in asked}
    chart = [_mesh_chart(found["mesh"])] if "mesh" in found else []
    here = [_here(**beside)] if {*READS} <= {*beside} else []
    of_course = [table(question, _of_course(found[question])) for question in IN_COURSE if question in found]
    return Section(_answer(found), [*chart, *here], for_course=of_course)


def _of_course(rows: pd.DataFrame) -> pd.DataFrame:
    """Leave out splits of the mesh that need more tokens than the given one."""
    given = rows.loc[rows["case"] == "given", "tokens"]
    return rows[(rows["case"] != "split") | rows["tokens"].le(given.max())]


def table(question: str, rows: pd.DataFrame) -> Table:
    """Return the table of a question; rows: its answers about one model, with the settings."""
    found = PREPARED.get(question, pd.DataFrame)(rows)
    found = found.replace({"case": CASES, "strategy": {"_": " "}}, regex=True)
    return WORDS.table(question, found, COLUMNS[question], only_filled=True, across=ACROSS.get(question))


def _answer(found: Mapping[str, pd.DataFrame]) -> str:
    if not {"memory", "fsdp", "mesh"} <= set(found):
        return WORDS.say("answered", answered=len(found))
    memory, fsdp = _main_row(found["memory"]), _main_row(_least_devices(found["fsdp"]))
    sizes = {"billions": memory["parameters"] / 1e9, "state_gb": memory["state_bytes"] / GB}
    return WORDS.say("answer", memory=memory, **sizes, fsdp=fsdp, mesh=_meshes(found["mesh"]).iloc[0])


def _mesh_chart(rows: pd.DataFrame) -> Chart:
    line = rows[rows["case"] == "batch"].sort_values("tokens", kind="stable").rename(columns=MESH_TIMES)
    points = line.melt(["tokens_per_device", "status"], list(MESH_TIMES.values()), "what", "block_ms")
    least = {"least": _meshes(rows)["tokens_per_device"].iloc[0]}
    return WORDS.chart("mesh_times", points, "line", "tokens_per_device", "block_ms", "what", values=least)


def _here(ceilings: pd.DataFrame, collectives: pd.DataFrame) -> Table:
    """Write from how many tokens on FSDP is compute bound on this machine, by its measured C and W; bf16 weights."""
    sent = ways.gathering_rates(collectives[collectives["backend"] == "nccl"])
    tflops_per_s = ceilings.loc[ceilings["dtype"] == "bf16", "tflops_per_s"].max()
    tokens = (1e3 * tflops_per_s / sent["busbw_gb_per_s"] * BF16_BYTES / 2).round()
    found = sent.assign(C=tflops_per_s, tokens=tokens, collective=sent["collective"].str.replace("_", "-"))
    return WORDS.table("here", having(found, "tokens"), "world_size C busbw_gb_per_s collective tokens")


def _main_row(rows: pd.DataFrame) -> pd.Series:
    """Choose the row to answer with: the smallest batch, and in it the preferred sequence length or the longest."""
    smallest = rows[rows["batch_size"] == rows["batch_size"].min()]
    preferred = smallest[smallest["seq_len"] == PREFERRED_SEQ_LEN]
    return (preferred if len(preferred) else smallest.sort_values("seq_len")).iloc[-1]


def _whole(numbers: pd.Series, otherwise: str) -> pd.Series:
    """Write whole numbers, or other words where there is none."""
    return numbers.map(count, na_action="ignore").astype(object).fillna(otherwise)


def _memory(rows: pd.DataFrame) -> pd.DataFrame:
    row = _main_row(rows)
    sizes, capacity = [row[f"{name}_bytes"] for name in STATE], row["setting_gpu_memory_gb"]
    gpus = {
        f"GPUs_of_{name}": [devices_to_hold(size, capacity * unit) for size in sizes] for name, unit in UNITS.items()
    }
    found = pd.DataFrame({"bytes_of": STATE, "size_bytes": sizes, "GiB": [size / GIB for size in sizes], **gpus})
    return found.assign(**row.drop(found.columns, errors="ignore"))


def _least_devices(rows: pd.DataFrame) -> pd.DataFrame:
    """Return one row per sequence length: the least devices, in words, and the memory of each of them."""
    smallest = rows[rows["batch_size"] == rows["batch_size"].min()]
    held = smallest["bytes_per_device"].where(smallest["num_devices"] == smallest["least_devices"])
    found = smallest.assign(on_each_bytes=held).sort_values(["seq_len", "on_each_bytes"]).drop_duplicates("seq_len")
    half = found["activation_bytes"] / 2
    return found.assign(
        devices=_whole(found["least_devices"], "none is enough"),
        not_sharded_bytes=half,
        most_tokens=found["setting_device_memory_gb"] * GB * found["batch_size"] * found["seq_len"] / half,
    )


def _meshes(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the mesh of the settings, then its variations, the smallest batch first."""
    cases = rows[rows["case"] != "batch"].sort_values("tokens", kind="stable")
    cases = cases.sort_values("case", key=lambda each: each.map(MESH_ORDER).fillna(1), kind="stable")
    return cases.assign(
        tokens_per_device=_whole(cases["whole_tokens_per_device"], "never"),
        tokens_overall=_whole(cases["whole_tokens"], "never"),
    )


def _parallel(rows: pd.DataFrame) -> pd.DataFrame:
    """Name strategies of two axes by how their transfers go, and devices by their split."""
    turns = rows["axes_overlap"].map({True: ", axes overlap", False: ", axes in turn"})
    return rows.assign(
        strategy=rows["strategy"] + turns.where(rows["strategy"] == "fsdp_tensor", ""),
        whole_split=written(rows, "{whole_devices:count}: {whole_batch_shares:count} × {whole_width_shares:count}"),
        tflop_each=rows["device_flops"] / 1e12,
        sent=written(rows, "{weight_bytes:data_size} + {activation_bytes:data_size}"),
    )


PREPARED: dict[str, Callable[[pd.DataFrame], pd.DataFrame]] = {
    "memory": _memory,
    "fsdp": _least_devices,
    "mesh": _meshes,
    "parallel": _parallel,
}
