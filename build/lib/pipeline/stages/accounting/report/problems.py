"""What the closed forms answer to the assignment's problems: two sentences and a formula each."""

import math

import pandas as pd

from pipeline.formulas.units import GB, GIB
from pipeline.report.markup import Markdown
from pipeline.report.section import counted, data_size, ms, number, percent
from pipeline.report.tables import significant
from pipeline.stages.accounting.report.facts import least_devices, main_row, mesh_levers, most_tokens, of_attention
from pipeline.stages.accounting.report.words import MESH_CASES, PARALLEL_CASES


def memory(rows: pd.DataFrame) -> str:
    """Answer how much memory the state takes, and how many GPUs hold it."""
    row = main_row(rows)
    capacity = f"{row['setting_gpu_memory_gb']:g}"
    return (
        f"{row['size']} has 2·D·F·L = {row['parameters']:,} parameters: at 16 bytes each (fp32 weights, gradients and "
        f"AdamW's moments) {row['state_bytes'] / GB:,.0f} GB ({row['state_bytes'] / GIB:,.0f} GiB), "
        f"{row['state_gpus']:,} GPUs of {capacity} GB ({row['state_gpus_of_gib']:,} of {capacity} GiB). Activations in "
        f"bf16, 2·L·(D + F) bytes a token, add {data_size(row['activation_bytes'])} for {row['batch_size']} × "
        f"{row['seq_len']:,} tokens: {row['total_gpus']:,} GPUs."
    )


def fsdp(rows: pd.DataFrame) -> str:
    """Answer how many devices hold the sharded state and activations."""
    capacity, least = f"{rows['setting_device_memory_gb'].iloc[0]:g} GB", least_devices(rows)
    if least is None:
        devices = f"No number of devices is enough for {capacity}."
    else:
        shortest = rows[rows["least_devices"].notna()].sort_values(["batch_size", "seq_len"]).iloc[0]
        devices = (
            f"That is less than {capacity} from N = {shortest['least_devices']:,.0f} on for sequences of "
            f"{counted(shortest['seq_len'], 'token')}, from N = {least['least_devices']:,.0f} on "
            f"({significant(least['bytes_per_device'] / GB)} GB) for {least['seq_len']:,} tokens."
        )
    return (
        f"With state and half of the activations A sharded a device holds (16·P + A/2) / N + A/2. {devices} From "
        f"{most_tokens(rows):,.0f} tokens on no number is enough."
    )


def mesh(rows: pd.DataFrame) -> Markdown:
    """Answer from which batch on the forward pass is compute bound."""
    given = mesh_levers(rows).loc["given"]
    shape = f"On a mesh of {given['fsdp_size']:g} × {given['tensor_size']:g}"
    if pd.isna(given["tokens"]):
        bound = f"{shape} the forward pass is compute bound at no batch."
    else:
        bound = (
            f"{shape} that is from {given['whole_tokens_per_device']:,.0f} tokens per device on, "
            f"{given['whole_tokens']:,.0f} overall; there a block takes {ms(given['compute_ms'])}, gathering its "
            f"weights {ms(given['fsdp_ms'])} and moving its activations {ms(given['tensor_ms'])}."
        )
    return Markdown(
        "Compute bound means 4·T·D·F / (X·Y·C) ≥ 4·D·F / (Y·W·M_X) + 4·T·D / (X·W·M_Y) (*How to Scale Your Model*, "
        f"Austin et al.); C / W is {given['intensity_flops_per_byte']:,.0f} FLOPs a byte. {bound}"
    )


def levers(rows: pd.DataFrame) -> str:
    """Answer what lowers the least compute-bound batch, best first."""
    cases = mesh_levers(rows)["tokens"]
    if pd.isna(cases["given"]):
        return ""
    lower = cases[cases < cases["given"]] / cases["given"]
    ways = "; ".join(f"{MESH_CASES[case]} ({percent(share)})" for case, share in lower.items())
    enough = f"A share of that batch is enough with one of these: {ways}. " if ways else ""
    return (
        f"{enough}Pipeline stages take devices from X and gather nothing over one another, against a bubble of "
        "(p − 1) / (m + p − 1); micro-batches that share gathered weights count together; longer sequences change "
        "nothing."
    )


def buckets(rows: pd.DataFrame) -> str:
    """Answer which number of buckets has the least overhead."""
    best, one_call = (rows[rows["case"] == case].iloc[0] for case in ("best", "one_call"))
    return (
        "Where computing a bucket's gradients takes as long as sending them, n buckets add n·o + s / (n·w), least at "
        f"n = √(s / (w·o)). For {best['size']} ({data_size(best['gradient_bytes'])} of gradients, w = "
        f"{best['setting_allreduce_gbytes_per_s']:g} GB/s, o = {best['setting_call_overhead_us']:g} µs) that is "
        f"{number(best['num_buckets'])} buckets of {data_size(best['bucket_bytes'])}, {ms(best['overhead_ms'])} where "
        f"one call after backward adds {ms(one_call['overhead_ms'])}."
    )


def ring(rows: pd.DataFrame) -> str:
    """Answer what all-reducing costs if a ring passes whole tensors around."""
    most = rows[rows["num_devices"] == rows["num_devices"].max()].set_index("case")
    shares = most.loc["shares"]
    return (
        "Each of N − 1 steps sends a whole tensor of s bytes: (N − 1)·s / W, against 2·(N − 1) / N·s / W with shares, "
        f"N / 2 times as long. For the gradients of {shares['size']}, {data_size(shares['gradient_bytes'])}, over "
        f"{shares['num_devices']} devices that each send {shares['setting_egress_gbytes_per_s']:g} GB/s: "
        f"{ms(most.loc['whole', 'ring_ms'])} against {ms(shares['ring_ms'])}."
    )


def data_parallel(rows: pd.DataFrame) -> str:
    """Answer up to how many devices data parallelism hides its all-reduce."""
    return (
        "A device does 6·T·D·F / N FLOPs forward, twice that backward, sends nothing forward and all-reduces 6·D·F "
        "bytes of gradients backward, 12·D·F·(N − 1) / (N·W) seconds: hidden up to N = 1 + T·W / C. "
        + _limit(rows, "data_parallel", "backward")
    )


def fully_sharded(rows: pd.DataFrame) -> str:
    """Answer up to how many devices FSDP hides its transfers."""
    return (
        "FLOPs are those of data parallelism. Forward gathers the weights, 6·D·F·(N − 1) / (N·W) seconds; backward "
        "gathers them again and scatters gradients, twice that: hidden in both passes up to N = 1 + T·W / C. "
        + _limit(rows, "fsdp", "forward")
    )


def tensor_parallel(rows: pd.DataFrame) -> str:
    """Answer up to how many devices tensor parallelism hides its transfers."""
    return (
        "FLOPs are the same; forward all-reduces the output, backward the input's gradient, 4·T·D·(N − 1) / (N·W) "
        "seconds each: hidden forward up to N = 1 + 3/2·F·W / C, backward up to 1 + 3·F·W / C, whatever the batch. "
        f"{_limit(rows, 'tensor', 'forward')} {_limit(rows, 'tensor', 'backward')}"
    )


def both_axes(rows: pd.DataFrame) -> str:
    """Answer up to how many devices both together hide their transfers, each at its best split."""
    overlapping, in_turn = (_limit(rows, "fsdp_tensor", "forward", overlap) for overlap in (True, False))
    return (
        "With X devices for FSDP and Y for tensor parallelism, a = T·W / C and b = 3/2·F·W / C: if the transfers of "
        "both axes overlap, the longer one counts, and X = 1 + a, Y = 1 + b is best. If not, their sum counts: "
        "(X − 1) / a + (Y − 1) / b ≤ 1, best at X = 1 + a·t, Y = 1 + b·(1 − t), t = 1/2 + (1/b − 1/a) / 2 within 0 to "
        f"1. {overlapping} {in_turn}"
    )


def _limit(rows: pd.DataFrame, strategy: str, phase: str, axes_overlap: bool = False) -> str:
    chosen = (rows["strategy"] == strategy) & (rows["phase"] == phase) & (rows["axes_overlap"] == axes_overlap)
    row = rows[chosen].iloc[0]
    shares = row["batch_shares"], row["width_shares"]
    level = " × ".join(f"{share:,.1f}" for share in shares)
    return (
        f"{phase.capitalize()}, {PARALLEL_CASES[strategy, axes_overlap]}, a layer of {row['size']} with T = "
        f"{row['setting_batch_tokens']:,} (C = {row['setting_peak_tflops_per_s']:g} TFLOP/s, W = "
        f"{row['setting_egress_gbytes_per_s']:g} GB/s): {math.prod(map(math.floor, shares)):,} devices; at "
        f"{level} computing and communicating take {ms(row['compute_ms'])} each."
    )


def attention(rows: pd.DataFrame) -> str:
    """Answer what attention keeps for its backward pass."""
    eager, flash = of_attention(rows, "eager"), of_attention(rows, "flash")
    kept, most, flash_kept = (
        significant(size / GIB) for size in (*eager[["kept_bytes", "most_bytes"]], flash["kept_bytes"])
    )
    return (
        "Eager attention keeps the softmax's output, 4·B·H·S² bytes, and has twice that at once; a flash kernel keeps "
        f"its output and a log-sum-exp, 4·B·H·S·(h + 1). At {eager['seq_len']:,} tokens (batch {eager['batch_size']}, "
        f"heads of {eager['head_dim']}) that is {kept} GiB, {most} at once, and {flash_kept} GiB: "
        f"{number(eager['kept_bytes'] / flash['kept_bytes'])}× less."
    )


def activations(rows: pd.DataFrame) -> str:
    """Say what a transformer keeps from forward to backward, and the scores' share of it."""
    eager, flash = of_attention(rows, "eager"), of_attention(rows, "flash")
    return (
        f"Each of the {eager['num_blocks']} layers of {eager['size']} keeps (8·D + 4·F + H·S + 2) numbers a token from "
        f"forward to backward. At batch {eager['batch_size']} and context {eager['seq_len']:,} the model keeps "
        f"{data_size(eager['activation_bytes'])} in fp32, of which the scores "
        f"{percent(eager['scores_bytes'] / eager['activation_bytes'])}; with a flash kernel "
        f"{data_size(flash['activation_bytes'])}."
    )
