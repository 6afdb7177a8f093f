"""The tables of closed forms, one a question: of the section, and of `python -m pipeline account` for any model."""

import math
from collections.abc import Callable

import pandas as pd

from pipeline.formulas.training_state import devices_to_hold
from pipeline.formulas.units import GB, GIB
from pipeline.report.formats import count, gb, mib, ms, number, percent, text
from pipeline.report.table import Columns, Table, filled

# The sequence length to answer with, where the question leaves it open.
PREFERRED_SEQ_LEN = 4096
TIMES = "\u00a0×\u00a0"  # of one line in a narrow column
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
STRATEGIES = {
    ("data_parallel", False): "data parallel",
    ("fsdp", False): "FSDP",
    ("tensor", False): "tensor parallel",
    ("fsdp_tensor", True): "FSDP + tensor, axes overlap",
    ("fsdp_tensor", False): "FSDP + tensor, in turn",
}


def whole_or(value: float, otherwise: str) -> str:
    """Write a whole number, or other words where there is none."""
    return otherwise if pd.isna(value) else count(value)


def main_row(rows: pd.DataFrame) -> pd.Series:
    """Choose the row to answer with: the smallest batch, and in it the preferred sequence length or the longest."""
    smallest = rows[rows["batch_size"] == rows["batch_size"].min()]
    preferred = smallest[smallest["seq_len"] == PREFERRED_SEQ_LEN]
    return (preferred if len(preferred) else smallest.sort_values("seq_len")).iloc[-1]


def _memory(rows: pd.DataFrame) -> Table:
    row = main_row(rows)
    capacity = row["setting_gpu_memory_gb"]
    lines = [
        {
            "what": words,
            "bytes": row[name],
            "gib": row[name] / GIB,
            "gpus": devices_to_hold(row[name], capacity * GB),
            "gpus_of_gib": devices_to_hold(row[name], capacity * GIB),
        }
        for name, words in STATE.items()
    ]
    columns: Columns = [
        ("bytes of", "what", text),
        ("GB", "bytes", gb),
        ("GiB", "gib", number),
        (f"GPUs of {capacity:g} GB", "gpus", count),
        (f"GPUs of {capacity:g} GiB", "gpus_of_gib", count),
    ]
    caption = (
        f"{row['size']}, {row['parameters']:,.0f} parameters, {row['batch_size']:.0f} × {row['seq_len']:,.0f} tokens:"
    )
    return Table("memory", caption, pd.DataFrame(lines), columns)


def least_devices(rows: pd.DataFrame) -> pd.DataFrame:
    """Return one row per sequence length: the least devices, in words too, and the memory of each of them."""
    smallest = rows[rows["batch_size"] == rows["batch_size"].min()].sort_values("seq_len", kind="stable")
    held = smallest["bytes_per_device"].where(smallest["num_devices"] == smallest["least_devices"])
    found = smallest.assign(held_bytes=held).sort_values(["seq_len", "held_bytes"]).drop_duplicates("seq_len")
    return found.assign(
        least=[whole_or(least, "none is enough") for least in found["least_devices"]],
        half_bytes=found["activation_bytes"] / 2,
    )


def _fsdp(rows: pd.DataFrame) -> Table:
    found = least_devices(rows)
    capacity, first = found["setting_device_memory_gb"].iloc[0], found.iloc[0]
    most_tokens = capacity * GB / (first["half_bytes"] / (first["batch_size"] * first["seq_len"]))
    columns: Columns = [
        ("tokens", "seq_len", count),
        ("state (GB)", "state_bytes", gb),
        ("activations (GB)", "activation_bytes", gb),
        ("half of them, not sharded (GB)", "half_bytes", gb),
        ("least devices", "least", text),
        ("on each (GB)", "held_bytes", gb),
    ]
    caption = (
        f"{first['size']}: devices that hold (state + half of the activations) / N + the other half in less than "
        f"{capacity:g} GB. From {most_tokens:,.0f} tokens on none is enough."
    )
    return Table("fsdp", caption, found, columns)


def given_mesh(rows: pd.DataFrame) -> pd.Series:
    """Return the row of the mesh of the settings."""
    return rows[rows["case"] == "given"].iloc[0]


def _mesh(rows: pd.DataFrame) -> Table:
    given = given_mesh(rows)
    cases = rows[rows["case"] != "batch"].sort_values("tokens", kind="stable")
    # Of the other splits the best one, and the first that no batch makes compute bound.
    splits = cases[cases["case"] == "split"]
    kept = [*splits.index[:1], *splits.index[splits["tokens"].isna()][:1]]
    cases = cases[(cases["case"] != "split") | cases.index.isin(kept)]
    cases = pd.concat([cases[cases["case"] == "given"], cases[cases["case"] != "given"]])
    cases = cases.assign(
        mesh=cases["case"].map(MESHES),
        per_device=[whole_or(tokens, "never") for tokens in cases["whole_tokens_per_device"]],
        overall=[whole_or(tokens, "never") for tokens in cases["whole_tokens"]],
        share=100 * cases["tokens"].astype(float) / given["tokens"] if pd.notna(given["tokens"]) else float("nan"),
    )
    columns: Columns = [
        ("mesh", "mesh", text),
        ("X (FSDP)", "fsdp_size", _shares),
        ("Y (tensor)", "tensor_size", _shares),
        ("tokens per device", "per_device", text),
        ("tokens overall", "overall", text),
        ("of the given", "share", percent),
        ("computing (ms)", "compute_ms", number),
        ("gathering weights (ms)", "fsdp_ms", number),
        ("moving activations (ms)", "tensor_ms", number),
    ]
    caption = (
        f"{given['size']} on {given['num_devices']:,.0f} devices, C / W = {given['intensity_flops_per_byte']:,.0f} "
        "FLOPs a byte: the least batch at which the forward pass of a block is compute bound:"
    )
    return Table("mesh", caption, cases, filled(cases, columns))


def _shares(value: float) -> str:
    return f"{value:.4g}"


def _buckets(rows: pd.DataFrame) -> Table:
    best = rows[rows["case"] == "best"].iloc[0]
    # Of the whole numbers of buckets, powers of two, every second.
    whole = rows[(rows["case"] == "buckets") & (rows["num_buckets"].map(math.log2) % 2 == 0)]
    found = pd.concat([rows[rows["case"].isin(["one_call", "best"])], whole], ignore_index=True)
    words = {"best": "the best number", "one_call": "one call after backward", "buckets": "during backward"}
    columns: Columns = [
        ("all-reduce", "what", text),
        ("buckets", "num_buckets", number),
        ("MB in each", "megabytes", number),
        ("overhead (ms)", "overhead_ms", number),
    ]
    caption = (
        f"{gb(best['gradient_bytes'])} GB of gradients in fp32 ({best['size']}) at "
        f"w = {best['setting_allreduce_gbytes_per_s']:g} GB/s and o = {best['setting_call_overhead_us']:g} µs a call:"
    )
    found = found.assign(what=found["case"].map(words), megabytes=found["bucket_bytes"] / 1e6)
    return Table("buckets", caption, found, columns)


def _ring(rows: pd.DataFrame) -> Table:
    first = rows.iloc[0]
    wide = rows.pivot(index="num_devices", columns="case", values="ring_ms").reset_index()
    wide = wide.assign(ratio=wide["whole"] / wide["shares"])
    columns: Columns = [
        ("devices", "num_devices", count),
        ("shares of the tensor", "shares", ms),
        ("whole tensors", "whole", ms),
        ("times as long", "ratio", number),
    ]
    caption = (
        f"All-reducing {gb(first['gradient_bytes'])} GB of gradients ({first['size']}) around a ring that sends "
        f"{first['setting_egress_gbytes_per_s']:g} GB/s:"
    )
    return Table("ring", caption, wide, columns)


def _parallel(rows: pd.DataFrame) -> Table:
    first = rows.iloc[0]
    keys = zip(rows["strategy"], rows["axes_overlap"].astype(bool), strict=True)
    shares = zip(rows["batch_shares"], rows["width_shares"], strict=True)
    whole_shares = zip(rows["whole_batch_shares"], rows["whole_width_shares"], strict=True)
    found = rows.assign(
        way=[STRATEGIES[key] for key in keys],
        whole_split=[f"{x:,.0f}{TIMES}{y:,.0f}" for x, y in whole_shares],
        exact=[f"{x:,.1f}{TIMES}{y:,.1f}" for x, y in shares],
        tflop=rows["device_flops"] / 1e12,
        weight_mb=rows["weight_bytes"] / 1e6,
        activation_mb=rows["activation_bytes"] / 1e6,
    )
    columns: Columns = [
        ("divided by", "way", text),
        ("pass", "phase", text),
        ("whole devices", "whole_devices", count),
        ("batch × width", "whole_split", text),
        ("exact limit", "exact", text),
        ("TFLOP of each", "tflop", number),
        ("sent for weights (MB)", "weight_mb", number),
        ("for activations (MB)", "activation_mb", number),
        ("computing (ms)", "compute_ms", number),
        ("communicating (ms)", "communication_ms", number),
    ]
    caption = (
        f"Most devices that stay compute bound: a feed-forward layer of {first['size']} in 16 bits, "
        f"{first['setting_batch_tokens']:,.0f} tokens, C = {first['setting_peak_tflops_per_s']:g} TFLOP/s, "
        f"W = {first['setting_egress_gbytes_per_s']:g} GB/s; what each does, at the exact limit:"
    )
    return Table("parallel", caption, found, columns)


def _activations(rows: pd.DataFrame) -> Table:
    first = rows.iloc[0]
    found = rows.assign(share=100 * rows["scores_bytes"] / rows["activation_bytes"])
    columns: Columns = [
        ("attention", "attention", text),
        ("tokens", "seq_len", count),
        ("norms (GB)", "norms_bytes", gb),
        ("attention (GB)", "attention_bytes", gb),
        ("scores (GB)", "scores_bytes", gb),
        ("feed-forward (GB)", "feed_forward_bytes", gb),
        ("head (GB)", "head_bytes", gb),
        ("all (GB)", "activation_bytes", gb),
        ("scores' share", "share", percent),
        ("with the state (GB)", "total_bytes", gb),
    ]
    caption = f"What {first['size']} keeps for the backward pass in fp32 at batch {first['batch_size']:.0f}:"
    return Table("activations", caption, found, columns)


def _attention(rows: pd.DataFrame) -> Table:
    first = rows.iloc[0]
    columns: Columns = [
        ("attention", "attention", text),
        ("tokens", "seq_len", count),
        ("q, k and v (MiB)", "inputs_bytes", mib),
        ("score matrix (MiB)", "score_matrix_bytes", mib),
        ("kept for backward (MiB)", "kept_bytes", mib),
        ("at most at once (MiB)", "most_bytes", mib),
    ]
    caption = (
        f"One layer's attention in fp32, batch {first['batch_size']:.0f}, {first['num_heads']:.0f} heads of "
        f"{first['head_dim']:.0f}:"
    )
    return Table("attention", caption, rows, columns)


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
