"""The accounting section, and a table a question: also those of `python -m pipeline account`, for any model."""

from collections.abc import Callable, Mapping

import pandas as pd

from pipeline.formulas.training_state import devices_to_hold
from pipeline.formulas.units import BF16_BYTES, GB, GIB
from pipeline.report.chart import Axis, Chart
from pipeline.report.formats import count, written
from pipeline.report.frame import in_order, known, with_figures
from pipeline.report.section import Section, say
from pipeline.report.table import Table, filled, named
from pipeline.stages.accounting.cell import QUESTIONS

# The sequence length to answer with, where the question leaves it open.
PREFERRED_SEQ_LEN = 4096
# What FSDP calls to gather weights, and what tells its rate where that was not measured: a ring sends as fast.
GATHERING = ("all_gather", "all_reduce")
# What the course's page shows of the questions; of the rest other stages' tables hold formula and recording together.
IN_COURSE = ("memory", "fsdp", "mesh", "ring", "parallel")
STATE = ("weights", "gradients", "optimizer", "state", "activation", "total")
MESH_TIMES = {
    "compute_ms": "computation",
    "communication_ms": "communication, both in turn",
    "fsdp_ms": "gathering weights (FSDP)",
    "tensor_ms": "moving activations (tensor)",
}
CAPTIONS = {
    "memory": "{size}, {parameters:count} parameters, {batch_size} × {seq_len:count} tokens; GPUs of "
    "{setting_gpu_memory_gb:g} GB or GiB:",
    "fsdp": "{size}: devices that hold (state + half of the activations) / N + the other half in less than "
    "{setting_device_memory_gb:g} GB. From {most_tokens:count} tokens on none is enough.",
    "mesh": "{size} on {num_devices:count} devices, C / W = {intensity_flops_per_byte:count} FLOPs a byte: the least "
    "batch at which the forward pass of a block is compute bound:",
    "buckets": "{gradient_bytes:gb} GB of gradients in fp32 ({size}) at w = {setting_allreduce_gbytes_per_s:g} GB/s "
    "and o = {setting_call_overhead_us:g} µs a call:",
    "ring": "All-reducing {gradient_bytes:gb} GB of gradients ({size}) around a ring that sends "
    "{setting_egress_gbytes_per_s:g} GB/s, by what is sent at a time: bytes / ms:",
    "parallel": "Most devices that stay compute bound: a feed-forward layer of {size} in 16 bits, "
    "{setting_batch_tokens:count} tokens, C = {setting_peak_tflops_per_s:g} TFLOP/s, "
    "W = {setting_egress_gbytes_per_s:g} GB/s; what each does, at the exact limit:",
    "activations": "What {size} keeps for the backward pass in fp32 at batch {batch_size}:",
    "attention": "One layer's attention in fp32, batch {batch_size}, {num_heads:count} heads of {head_dim:count}:",
}
COLUMNS = {
    "memory": "bytes_of size_bytes GiB GPUs_of_GB GPUs_of_GiB",
    "fsdp": "seq_len state_bytes activation_bytes not_sharded_bytes devices on_each_bytes",
    "mesh": "case fsdp_size tensor_size tokens_per_device tokens_overall compute_ms fsdp_ms tensor_ms",
    "buckets": "case num_buckets bucket_bytes overhead_ms",
    "ring": "num_devices case sent_bytes ring_ms",  # a column a case
    "parallel": "strategy axes_overlap phase whole_devices whole_batch_shares whole_width_shares most_devices "
    "device_tflop weight_bytes activation_bytes compute_ms communication_ms",
    "activations": "attention seq_len norms_bytes attention_bytes scores_bytes feed_forward_bytes head_bytes "
    "activation_bytes total_bytes",
    "attention": "attention seq_len inputs_bytes score_matrix_bytes kept_bytes most_bytes",
}


def build(rows: pd.DataFrame, beside: Mapping[str, pd.DataFrame]) -> Section:
    """Return the section of the accounting stage: of each question the answers about the first model asked of.

    beside: ceilings and collectives, for what this machine's GPUs do and send.
    """
    rows = with_figures(rows)
    asked = {question: rows[rows["question"] == question] for question in QUESTIONS}
    found = {question: each[each["size"] == each["size"].iloc[0]] for question, each in asked.items() if len(each)}
    return Section(
        _answer(found),
        [*([_mesh_chart(found["mesh"])] if "mesh" in found else []), _here(beside)],
        for_course=[table(question, each) for question, each in found.items() if question in IN_COURSE],
    )


def table(question: str, rows: pd.DataFrame) -> Table:
    """Return the table of a question; rows: its answers about one model, with the settings."""
    found = PREPARED.get(question, pd.DataFrame)(rows)
    found = found.replace({name: {"_": " "} for name in ("case", "strategy")}, regex=True)
    if "device_flops" in found:
        found = found.assign(device_tflop=found["device_flops"] / 1e12)
    [caption] = written(found.head(1), CAPTIONS[question])
    columns = named(found, COLUMNS[question], seq_len="tokens", size_bytes="size")
    across = "case" if question == "ring" else None
    return Table(question, str(caption), found, filled(found, columns), all_rows=True, across=across)


def _answer(found: Mapping[str, pd.DataFrame]) -> str:
    if not {"memory", "fsdp", "mesh"} <= set(found):
        return say("{answered} questions are answered by formula.", answered=len(found))
    memory = _main_row(found["memory"])
    return say(
        "{memory[size]}, with {billions:count}B parameters, has a training state of {state_gb:count} GB: "
        "{memory[state_gpus]:count} GPUs of {memory[setting_gpu_memory_gb]:count} GB. FSDP with {fsdp[seq_len]:count} "
        "tokens per device takes {fsdp[devices]} devices of {fsdp[setting_device_memory_gb]:count} GB. To keep "
        "{mesh[num_devices]:count} devices compute bound takes {mesh[tokens_per_device]} tokens per device.",
        memory=memory,
        billions=memory["parameters"] / 1e9,
        state_gb=memory["state_bytes"] / GB,
        fsdp=_main_row(_least_devices(found["fsdp"])),
        mesh=_meshes(found["mesh"]).iloc[0],
    )


def _mesh_chart(rows: pd.DataFrame) -> Chart:
    line = rows[rows["case"] == "batch"].sort_values("tokens", kind="stable")
    points = [line.assign(what=words, block_ms=line[name]) for name, words in MESH_TIMES.items()]
    return Chart(
        "mesh_times",
        f"Compute bound from {_meshes(rows)['tokens_per_device'].iloc[0]} tokens per device on: a block's times",
        pd.concat(points, ignore_index=True),
        "line",
        Axis("tokens_per_device", "tokens per device"),
        Axis("block_ms", "ms"),
        "what",
    )


def _here(beside: Mapping[str, pd.DataFrame]) -> Table:
    """Write from how many tokens on FSDP is compute bound on this machine, by its measured C and W; bf16 weights."""
    caption = "FSDP on this machine: from so many tokens per GPU on, computing hides the gathering of bf16 weights:"
    products = known(beside.get("ceilings", pd.DataFrame()), "tflops_per_s", "dtype")
    calls = known(beside.get("collectives", pd.DataFrame()), "busbw_gb_per_s", "collective")
    if products.empty or calls.empty:
        return Table("here", caption, pd.DataFrame(), [])
    sent = with_figures(calls[(calls["backend"] == "nccl") & calls["collective"].isin(GATHERING)])
    sent = in_order(sent, ["collective", "busbw_gb_per_s"], {"collective": GATHERING[::-1]})
    sent = sent.drop_duplicates("world_size", keep="last").sort_values("world_size")
    tflops_per_s = products.loc[products["dtype"] == "bf16", "tflops_per_s"].max()
    intensity = 1e3 * tflops_per_s / sent["busbw_gb_per_s"]
    found = sent.assign(C=tflops_per_s, intensity=intensity.round(), tokens=(intensity * BF16_BYTES / 2).round())
    found["collective"] = found["collective"].str.replace("_", "-")
    heads = {"C": "C: bf16 products (TFLOP/s)", "busbw_gb_per_s": "W: bus bandwidth (GB/s)", "collective": "of"}
    heads |= {"world_size": "GPUs", "intensity": "C / W (FLOPs a byte)", "tokens": "tokens per GPU"}
    columns = named(found, "world_size C busbw_gb_per_s collective intensity tokens", **heads)
    return Table("here", caption, known(found, "tokens"), columns)


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
    lines = [{**row, "bytes_of": name, "size_bytes": row[f"{name}_bytes"]} for name in STATE]
    found, capacity = pd.DataFrame(lines), row["setting_gpu_memory_gb"]
    sizes = found["size_bytes"]
    return found.assign(
        GiB=sizes / GIB,
        GPUs_of_GB=[devices_to_hold(size, capacity * GB) for size in sizes],
        GPUs_of_GiB=[devices_to_hold(size, capacity * GIB) for size in sizes],
    )


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
    cases = pd.concat([cases[cases["case"] == "given"], cases[cases["case"] != "given"]])
    return cases.assign(
        tokens_per_device=_whole(cases["whole_tokens_per_device"], "never"),
        tokens_overall=_whole(cases["whole_tokens"], "never"),
    )


PREPARED: dict[str, Callable[[pd.DataFrame], pd.DataFrame]] = {
    "memory": _memory,
    "fsdp": _least_devices,
    "mesh": _meshes,
}
