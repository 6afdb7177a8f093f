"""Build the accounting section, and the table of each question, also for `python -m pipeline account`."""

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
# Sequence length of the answer if the question names none.
PREFERRED_SEQ_LEN = 4096
ACROSS = {"ring": "num_devices", "parallel": "phase"}
CASES = {"_": " ", "^whole$": "the whole tensor", "^split$": "another split"}
# The mesh in the settings first, then its variations, then other splits of the same devices.
MESH_ORDER = {"given": 0, "split": 2}
UNITS = {"GB": GB, "GiB": GIB}
# Questions shown on the course's page. For the rest, other stages' tables have formula and measurement side by side.
IN_COURSE = ("memory", "fsdp", "mesh", "ring", "parallel")
STATE = ("weights", "gradients", "optimizer", "state", "activation", "total")
MESH_TIMES = {
    "compute_ms": "computation",
    "communication_ms": "communication, sum of both",
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


def build(rows: pd.DataFrame, other_stages: Mapping[str, pd.DataFrame]) -> Section:
    """Return the accounting section: the answers to each question about its first model.

    other_stages: rows of ceilings and collectives, for the measured FLOP/s and bandwidth of this machine's GPUs.
    """
    by_question = with_values(rows).groupby("question")
    answers = {str(question): each[each["size"] == each["size"].iloc[0]] for question, each in by_question}
    chart = [_mesh_chart(answers["mesh"])] if "mesh" in answers else []
    here = [_on_this_machine(**other_stages)] if {*READS} <= {*other_stages} else []
    course_tables = [table(question, _course_rows(answers[question])) for question in IN_COURSE if question in answers]
    return Section(_answer(answers), [*chart, *here], for_course=course_tables)


def _course_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """Leave out splits of the mesh that need more tokens than the given one."""
    given = rows.loc[rows["case"] == "given", "tokens"]
    return rows[(rows["case"] != "split") | rows["tokens"].le(given.max())]


def table(question: str, rows: pd.DataFrame) -> Table:
    """Return the table of a question; rows: its answers about one model, with the settings."""
    found = PREPARED.get(question, pd.DataFrame)(rows)
    found = found.replace({"case": CASES, "strategy": {"_": " "}}, regex=True)
    return WORDS.table(question, found, COLUMNS[question], only_filled=True, across=ACROSS.get(question))


def _answer(answers: Mapping[str, pd.DataFrame]) -> str:
    if not {"memory", "fsdp", "mesh"} <= set(answers):
        return WORDS.say("answered", answered=len(answers))
    memory, fsdp = _main_row(answers["memory"]), _main_row(_least_devices(answers["fsdp"]))
    sizes = {"billions": memory["parameters"] / 1e9, "state_gb": memory["state_bytes"] / GB}
    return WORDS.say("answer", memory=memory, **sizes, fsdp=fsdp, mesh=_meshes(answers["mesh"]).iloc[0])


def _mesh_chart(rows: pd.DataFrame) -> Chart:
    line = rows[rows["case"] == "batch"].sort_values("tokens", kind="stable").rename(columns=MESH_TIMES)
    points = line.melt(["tokens_per_device", "status"], list(MESH_TIMES.values()), "what", "block_ms")
    least = {"least": _meshes(rows)["tokens_per_device"].iloc[0]}
    return WORDS.chart("mesh_times", points, "line", "tokens_per_device", "block_ms", "what", values=least)


def _on_this_machine(ceilings: pd.DataFrame, collectives: pd.DataFrame) -> Table:
    """Tabulate how many tokens make FSDP compute bound on this machine, from its measured C and W; bf16 weights."""
    sent = ways.gathering_rates(collectives[collectives["backend"] == "nccl"])
    tflops_per_s = ceilings.loc[ceilings["dtype"] == "bf16", "tflops_per_s"].max()
    sent_share = 1 - 1 / sent["world_size"]  # of the weights that a rank gathers, by the definition of bus bandwidth
    tokens = (sent_share * 1e3 * tflops_per_s / sent["busbw_gb_per_s"] * BF16_BYTES / 2).round()
    found = sent.assign(C=tflops_per_s, tokens=tokens, collective=sent["collective"].str.replace("_", "-"))
    return WORDS.table("here", having(found, "tokens"), "world_size C busbw_gb_per_s collective tokens")


def _main_row(rows: pd.DataFrame) -> pd.Series:
    """Choose the row for the answer: smallest batch, then the preferred sequence length, else the longest."""
    smallest = rows[rows["batch_size"] == rows["batch_size"].min()]
    preferred = smallest[smallest["seq_len"] == PREFERRED_SEQ_LEN]
    return (preferred if len(preferred) else smallest.sort_values("seq_len")).iloc[-1]


def _counts(numbers: pd.Series, default: str) -> pd.Series:
    """Format whole numbers; missing ones become `default`."""
    return numbers.map(count, na_action="ignore").astype(object).fillna(default)


def _memory(rows: pd.DataFrame) -> pd.DataFrame:
    row = _main_row(rows)
    sizes, capacity = [row[f"{name}_bytes"] for name in STATE], row["setting_gpu_memory_gb"]
    gpus = {
        f"GPUs_of_{name}": [devices_to_hold(size, capacity * unit) for size in sizes] for name, unit in UNITS.items()
    }
    found = pd.DataFrame({"bytes_of": STATE, "size_bytes": sizes, "GiB": [size / GIB for size in sizes], **gpus})
    return found.assign(**row.drop(found.columns, errors="ignore"))


def _least_devices(rows: pd.DataFrame) -> pd.DataFrame:
    """Return one row per sequence length: the fewest devices that fit, as text, and the memory on each."""
    smallest = rows[rows["batch_size"] == rows["batch_size"].min()]
    held = smallest["bytes_per_device"].where(smallest["num_devices"] == smallest["least_devices"])
    found = smallest.assign(on_each_bytes=held).sort_values(["seq_len", "on_each_bytes"]).drop_duplicates("seq_len")
    half = found["activation_bytes"] / 2
    return found.assign(
        devices=_counts(found["least_devices"], "none is enough"),
        not_sharded_bytes=half,
        most_tokens=found["setting_device_memory_gb"] * GB * found["batch_size"] * found["seq_len"] / half,
    )


def _meshes(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the mesh of the settings, then its variations, the smallest batch first."""
    cases = rows[rows["case"] != "batch"].sort_values("tokens", kind="stable")
    cases = cases.sort_values("case", key=lambda each: each.map(MESH_ORDER).fillna(1), kind="stable")
    return cases.assign(
        tokens_per_device=_counts(cases["whole_tokens_per_device"], "never"),
        tokens_overall=_counts(cases["whole_tokens"], "never"),
    )


def _parallel(rows: pd.DataFrame) -> pd.DataFrame:
    """Label two-axis strategies by whether their transfers overlap, and device counts by their split."""
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
