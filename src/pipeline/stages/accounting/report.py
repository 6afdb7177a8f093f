"""The accounting section, and a table a question: also those of `python -m pipeline account`, for any model."""

from collections.abc import Callable, Mapping

import pandas as pd

from pipeline.formulas.training_state import devices_to_hold
from pipeline.formulas.units import GB, GIB
from pipeline.report.chart import Axis, Chart
from pipeline.report.formats import Form, count, gb, mib, ms, number, text
from pipeline.report.frame import with_figures
from pipeline.report.section import Section, say
from pipeline.report.table import Columns, Table, filled
from pipeline.stages.accounting.cell import QUESTIONS

# The sequence length to answer with, where the question leaves it open.
PREFERRED_SEQ_LEN = 4096
STATE = {
    "weights_bytes": "weights, fp32",
    "gradients_bytes": "gradients, fp32",
    "optimizer_bytes": "AdamW's moments, fp32",
    "state_bytes": "training state: all of these",
    "activation_bytes": "activations kept for backward",
    "total_bytes": "state and activations",
}
MESHES = {
    "given": "as given",
    "overlap": "transfers of both axes overlap",
    "fp8_weights": "weights gathered in 8 bits",
    "split": "another whole split",
    "best_split": "the best split, whole or not",
    "best_split_overlap": "the best split, and overlap",
}
MESH_TIMES = {
    "compute_ms": "computation",
    "communication_ms": "communication, both in turn",
    "fsdp_ms": "gathering weights (FSDP)",
    "tensor_ms": "moving activations (tensor)",
}
BUCKETS = {"buckets": "during backward", "one_call": "one call after backward", "best": "the best number"}
RINGS = {"shares": "shares of the tensor", "whole": "whole tensors"}
STRATEGIES = {
    ("data_parallel", False): "data parallel",
    ("fsdp", False): "FSDP",
    ("tensor", False): "tensor parallel",
    ("fsdp_tensor", True): "FSDP + tensor, axes overlap",
    ("fsdp_tensor", False): "FSDP + tensor, in turn",
}


def build(rows: pd.DataFrame, beside: Mapping[str, pd.DataFrame]) -> Section:
    """Return the section of the accounting stage: of each question the answers about the first model asked of."""
    rows = with_figures(rows)
    asked = {question: rows[rows["question"] == question] for question in QUESTIONS}
    found = {question: each[each["size"] == each["size"].iloc[0]] for question, each in asked.items() if len(each)}
    return Section(
        _answer(found),
        [_mesh_chart(found["mesh"])] if "mesh" in found else [],
        for_course=[TABLES[question](each) for question, each in found.items()],
    )


def _answer(found: Mapping[str, pd.DataFrame]) -> str:
    if not {"memory", "fsdp", "mesh"} <= set(found):
        return say("{answered} questions are answered by formula.", answered=len(found))
    memory = _main_row(found["memory"])
    return say(
        "{memory[size]}, with {billions:count}B parameters, has a training state of {state_gb:count} GB: "
        "{memory[state_gpus]:count} GPUs of {memory[setting_gpu_memory_gb]:count} GB. FSDP with {fsdp[seq_len]:count} "
        "tokens per device takes {fsdp[least]} devices of {fsdp[setting_device_memory_gb]:count} GB. To keep "
        "{mesh[num_devices]:count} devices compute bound takes {mesh[per_device]} tokens per device.",
        memory=memory,
        billions=memory["parameters"] / 1e9,
        state_gb=memory["state_bytes"] / GB,
        fsdp=_main_row(_least_devices(found["fsdp"])),
        mesh=_meshes(found["mesh"]).iloc[0],
    )


def _main_row(rows: pd.DataFrame) -> pd.Series:
    """Choose the row to answer with: the smallest batch, and in it the preferred sequence length or the longest."""
    smallest = rows[rows["batch_size"] == rows["batch_size"].min()]
    preferred = smallest[smallest["seq_len"] == PREFERRED_SEQ_LEN]
    return (preferred if len(preferred) else smallest.sort_values("seq_len")).iloc[-1]


def _whole(numbers: pd.Series, otherwise: str) -> pd.Series:
    """Write whole numbers, or other words where there is none."""
    return numbers.map(count, na_action="ignore").astype(object).fillna(otherwise)


def _least_devices(rows: pd.DataFrame) -> pd.DataFrame:
    """Return one row per sequence length: the least devices, in words too, and the memory of each of them."""
    smallest = rows[rows["batch_size"] == rows["batch_size"].min()]
    held = smallest["bytes_per_device"].where(smallest["num_devices"] == smallest["least_devices"])
    found = smallest.assign(held_bytes=held).sort_values(["seq_len", "held_bytes"]).drop_duplicates("seq_len")
    least = _whole(found["least_devices"], "none is enough")
    return found.assign(least=least, half_bytes=found["activation_bytes"] / 2)


def _meshes(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the mesh of the settings, then its variations, the smallest batch first."""
    cases = rows[rows["case"] != "batch"].sort_values("tokens", kind="stable")
    cases = pd.concat([cases[cases["case"] == "given"], cases[cases["case"] != "given"]])
    return cases.assign(
        mesh=cases["case"].map(MESHES),
        per_device=_whole(cases["whole_tokens_per_device"], "never"),
        overall=_whole(cases["whole_tokens"], "never"),
    )


def _mesh_chart(rows: pd.DataFrame) -> Chart:
    line = rows[rows["case"] == "batch"].sort_values("tokens", kind="stable")
    points = [line.assign(what=words, block_ms=line[name]) for name, words in MESH_TIMES.items()]
    return Chart(
        "mesh_times",
        f"Compute bound from {_meshes(rows)['per_device'].iloc[0]} tokens per device on: a block's times by formula",
        pd.concat(points, ignore_index=True),
        "line",
        Axis("tokens_per_device", "tokens per device"),
        Axis("block_ms", "ms"),
        "what",
    )


def _memory(rows: pd.DataFrame) -> Table:
    row = _main_row(rows)
    capacity = row["setting_gpu_memory_gb"]
    lines = pd.DataFrame([(words, row[name]) for name, words in STATE.items()], columns=["what", "bytes"])
    columns: Columns = [
        ("bytes of", "what", text),
        ("GB", "bytes", gb),
        ("GiB", "bytes", lambda size: number(size / GIB)),
        (f"GPUs of {capacity:g} GB", "bytes", lambda size: count(devices_to_hold(size, capacity * GB))),
        (f"GPUs of {capacity:g} GiB", "bytes", lambda size: count(devices_to_hold(size, capacity * GIB))),
    ]
    caption = "{size}, {parameters:,.0f} parameters, {batch_size:.0f} × {seq_len:,.0f} tokens:".format(**row)
    return Table("memory", caption, lines, columns)


def _fsdp(rows: pd.DataFrame) -> Table:
    found = _least_devices(rows)
    first = found.iloc[0]
    columns: Columns = [
        ("tokens", "seq_len", count),
        ("state (GB)", "state_bytes", gb),
        ("activations (GB)", "activation_bytes", gb),
        ("half of them, not sharded (GB)", "half_bytes", gb),
        ("least devices", "least", text),
        ("on each (GB)", "held_bytes", gb),
    ]
    most_tokens = first["setting_device_memory_gb"] * GB * first["batch_size"] * first["seq_len"] / first["half_bytes"]
    caption = (
        "{size}: devices that hold (state + half of the activations) / N + the other half in less than "
        "{setting_device_memory_gb:g} GB. From {most_tokens:,.0f} tokens on none is enough."
    )
    return Table("fsdp", caption.format(most_tokens=most_tokens, **first), found, columns)


def _mesh(rows: pd.DataFrame) -> Table:
    cases = _meshes(rows)
    columns: Columns = [
        ("mesh", "mesh", text),
        ("X (FSDP)", "fsdp_size", "{:.4g}".format),
        ("Y (tensor)", "tensor_size", "{:.4g}".format),
        ("tokens per device", "per_device", text),
        ("tokens overall", "overall", text),
        ("computing (ms)", "compute_ms", number),
        ("gathering weights (ms)", "fsdp_ms", number),
        ("moving activations (ms)", "tensor_ms", number),
    ]
    caption = (
        "{size} on {num_devices:,.0f} devices, C / W = {intensity_flops_per_byte:,.0f} FLOPs a byte: the least batch "
        "at which the forward pass of a block is compute bound:"
    )
    return Table("mesh", caption.format(**cases.iloc[0]), cases, filled(cases, columns))


def _buckets(rows: pd.DataFrame) -> Table:
    best = rows[rows["case"] == "best"]
    found = pd.concat([best, rows[rows["case"] != "best"]], ignore_index=True)
    columns: Columns = [
        ("all-reduce", "what", text),
        ("buckets", "num_buckets", number),
        ("MB in each", "bucket_mb", number),
        ("overhead (ms)", "overhead_ms", number),
    ]
    caption = (
        "{gradient_gb} GB of gradients in fp32 ({size}) at w = {setting_allreduce_gbytes_per_s:g} GB/s and "
        "o = {setting_call_overhead_us:g} µs a call:"
    ).format(gradient_gb=gb(best["gradient_bytes"].iloc[0]), **best.iloc[0])
    found = found.assign(what=found["case"].map(BUCKETS), bucket_mb=found["bucket_bytes"] / 1e6)
    return Table("buckets", caption, found, columns)


def _ring(rows: pd.DataFrame) -> Table:
    wide = rows.pivot(index="num_devices", columns="case", values="ring_ms").reset_index()
    columns: Columns = [
        ("devices", "num_devices", count),
        ("shares of the tensor", "shares", ms),
        ("whole tensors", "whole", ms),
        ("times as long", "ratio", number),
    ]
    caption = (
        "All-reducing {gradient_gb} GB of gradients ({size}) around a ring that sends "
        "{setting_egress_gbytes_per_s:g} GB/s:"
    ).format(gradient_gb=gb(rows["gradient_bytes"].iloc[0]), **rows.iloc[0])
    return Table("ring", caption, wide.assign(ratio=wide["whole"] / wide["shares"]), columns)


def _parallel(rows: pd.DataFrame) -> Table:
    keys = zip(rows["strategy"], rows["axes_overlap"].astype(bool), strict=True)
    columns: Columns = [
        ("divided by", "way", text),
        ("pass", "phase", text),
        ("whole devices", "whole_devices", count),
        ("of it batch", "whole_batch_shares", count),
        ("width", "whole_width_shares", count),
        ("exact limit", "most_devices", number),
        ("TFLOP of each", "tflop", number),
        ("sent for weights (MB)", "weight_mb", number),
        ("for activations (MB)", "activation_mb", number),
        ("computing (ms)", "compute_ms", number),
        ("communicating (ms)", "communication_ms", number),
    ]
    caption = (
        "Most devices that stay compute bound: a feed-forward layer of {size} in 16 bits, "
        "{setting_batch_tokens:,.0f} tokens, C = {setting_peak_tflops_per_s:g} TFLOP/s, "
        "W = {setting_egress_gbytes_per_s:g} GB/s; what each does, at the exact limit:"
    )
    found = rows.assign(
        way=[STRATEGIES[key] for key in keys],
        tflop=rows["device_flops"] / 1e12,
        weight_mb=rows["weight_bytes"] / 1e6,
        activation_mb=rows["activation_bytes"] / 1e6,
    )
    return Table("parallel", caption.format(**rows.iloc[0]), found, columns)


def _activations(rows: pd.DataFrame) -> Table:
    columns: Columns = [
        ("attention", "attention", text),
        ("tokens", "seq_len", count),
        ("norms (GB)", "norms_bytes", gb),
        ("attention (GB)", "attention_bytes", gb),
        ("scores (GB)", "scores_bytes", gb),
        ("feed-forward (GB)", "feed_forward_bytes", gb),
        ("head (GB)", "head_bytes", gb),
        ("all (GB)", "activation_bytes", gb),
        ("with the state (GB)", "total_bytes", gb),
    ]
    caption = "What {size} keeps for the backward pass in fp32 at batch {batch_size:.0f}:"
    return Table("activations", caption.format(**rows.iloc[0]), rows, columns)


def _attention(rows: pd.DataFrame) -> Table:
    columns: Columns = [
        ("attention", "attention", text),
        ("tokens", "seq_len", count),
        ("q, k and v (MiB)", "inputs_bytes", mib),
        ("score matrix (MiB)", "score_matrix_bytes", mib),
        ("kept for backward (MiB)", "kept_bytes", mib),
        ("at most at once (MiB)", "most_bytes", mib),
    ]
    caption = "One layer's attention in fp32, batch {batch_size:.0f}, {num_heads:.0f} heads of {head_dim:.0f}:"
    return Table("attention", caption.format(**rows.iloc[0]), rows, columns)


TABLES: dict[str, Callable[[pd.DataFrame], Table]] = {
    "memory": _memory,
    "fsdp": _fsdp,
    "mesh": _mesh,
    "buckets": _buckets,
    "ring": _ring,
    "parallel": _parallel,
    "activations": _activations,
    "attention": _attention,
}
