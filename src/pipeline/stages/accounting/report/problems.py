"""What the closed forms answer to the assignment's problems: two sentences and a formula each."""

import pandas as pd

from pipeline.formulas.units import GB, GIB
from pipeline.report.markup import Markdown
from pipeline.report.page_parts import say
from pipeline.report.section import count, data_size, ms, number, percent
from pipeline.report.tables import significant
from pipeline.stages.accounting.report.facts import least_devices, main_row, mesh_levers, most_tokens, of_attention
from pipeline.stages.accounting.report.words import MESH_CASES


def memory(rows: pd.DataFrame) -> Markdown:
    """Answer how much memory the state takes, and how many GPUs hold it."""
    row = main_row(rows)
    capacity = f"{row['setting_gpu_memory_gb']:g}"
    return say(
        "{size} has 2·D·F·L = {parameters} parameters: at 16 bytes each (fp32 weights, gradients and AdamW's moments) "
        "{state} GB ({gib} GiB), {gpus} GPUs of {capacity} GB ({gib_gpus} of {capacity} GiB). Activations in bf16, "
        "2·L·(D + F) bytes a token, add {activations} for {batch} × {seq_len} tokens: {total} GPUs.",
        size=row["size"],
        parameters=count(row["parameters"]),
        state=count(row["state_bytes"] / GB),
        gib=count(row["state_bytes"] / GIB),
        gpus=count(row["state_gpus"]),
        gib_gpus=count(row["state_gpus_of_gib"]),
        capacity=capacity,
        activations=data_size(row["activation_bytes"]),
        batch=count(row["batch_size"]),
        seq_len=count(row["seq_len"]),
        total=count(row["total_gpus"]),
    )


def fsdp(rows: pd.DataFrame) -> Markdown:
    """Answer how many devices hold the sharded state and activations."""
    capacity, least = f"{rows['setting_device_memory_gb'].iloc[0]:g}", least_devices(rows)
    formula = Markdown("With state and half of the activations A sharded a device holds (16·P + A/2) / N + A/2. ")
    limit = say(" From {tokens} tokens on no number is enough.", tokens=count(most_tokens(rows)))
    if least is None:
        return formula + say("No number of devices is enough for {capacity} GB.", capacity=capacity) + limit
    shortest = rows[rows["least_devices"].notna()].sort_values(["batch_size", "seq_len"]).iloc[0]
    sentence = (
        "That is less than {capacity} GB from N = {shortest} on for sequences of {short}, from N = {least} on "
        "({held} GB) for {seq_len} tokens."
    )
    return (
        formula
        + say(
            sentence,
            capacity=capacity,
            shortest=count(shortest["least_devices"]),
            short=f"{count(shortest['seq_len'])} token{'s' if shortest['seq_len'] > 1 else ''}",
            least=count(least["least_devices"]),
            held=significant(least["bytes_per_device"] / GB),
            seq_len=count(least["seq_len"]),
        )
        + limit
    )


def mesh(rows: pd.DataFrame) -> Markdown:
    """Answer from which batch on the forward pass is compute bound."""
    given = mesh_levers(rows).loc["given"]
    formula = say(
        "Compute bound means 4·T·D·F / (X·Y·C) ≥ 4·D·F / (Y·W·M_X) + 4·T·D / (X·W·M_Y) "
        "(*How to Scale Your Model*, Austin et al.); C / W is {alpha} FLOPs a byte. ",
        alpha=count(given["intensity_flops_per_byte"]),
    )
    shape = f"{given['fsdp_size']:g} × {given['tensor_size']:g}"
    if pd.isna(given["tokens"]):
        return formula + say("On a mesh of {shape} the forward pass is compute bound at no batch.", shape=shape)
    sentence = (
        "On a mesh of {shape} that is from {tokens} tokens per device on, {overall} overall; there a block takes "
        "{block}, gathering its weights {gathering} and moving its activations {moving}."
    )
    return formula + say(
        sentence,
        shape=shape,
        tokens=count(given["whole_tokens_per_device"]),
        overall=count(given["whole_tokens"]),
        block=ms(given["compute_ms"]),
        gathering=ms(given["fsdp_ms"]),
        moving=ms(given["tensor_ms"]),
    )


def levers(rows: pd.DataFrame) -> Markdown:
    """Answer what lowers the least compute-bound batch, best first."""
    cases = mesh_levers(rows)
    given = cases.loc["given", "tokens"]
    if pd.isna(given):
        return Markdown()
    lower = cases.drop(index="given")
    lower = lower[lower["tokens"] < given]
    ways = [
        say("{way} ({share})", way=MESH_CASES[case], share=percent(row["tokens"] / given))
        for case, row in lower.iterrows()
    ]
    told = say("Of the batch per device it takes: {ways}. ", ways=Markdown("; ").join(ways)) if ways else Markdown()
    return told + Markdown(
        "Pipeline stages take devices from X and gather nothing over one another, against a bubble of "
        "(p − 1) / (m + p − 1); micro-batches that share gathered weights count together; longer sequences "
        "change nothing."
    )


def buckets(rows: pd.DataFrame) -> Markdown:
    """Answer which number of buckets has the least overhead."""
    best, one_call = (rows[rows["case"] == case].iloc[0] for case in ("best", "one_call"))
    return say(
        "Where computing a bucket's gradients takes as long as sending them, n buckets add n·o + s / (n·w), least at "
        "n = √(s / (w·o)). For {size} ({gradients} of gradients, w = {w} GB/s, o = {o} µs) that is {n} buckets of "
        "{bucket}, {overhead} where one call after backward adds {one_call}.",
        size=best["size"],
        gradients=data_size(best["gradient_bytes"]),
        w=f"{best['setting_allreduce_gbytes_per_s']:g}",
        o=f"{best['setting_call_overhead_us']:g}",
        n=number(best["num_buckets"]),
        bucket=data_size(best["bucket_bytes"]),
        overhead=ms(best["overhead_ms"]),
        one_call=ms(one_call["overhead_ms"]),
    )


def attention(rows: pd.DataFrame) -> Markdown:
    """Answer what attention keeps for its backward pass."""
    eager, flash = of_attention(rows, "eager"), of_attention(rows, "flash")
    return say(
        "Eager attention keeps the softmax's output, 4·B·H·S² bytes, and has twice that at once; a flash kernel keeps "
        "its output and a log-sum-exp, 4·B·H·S·(h + 1). At {seq_len} tokens (batch {batch}, heads of {head_dim}) that "
        "is {eager} GiB, {most} at once, and {flash} GiB: {times}× less.",
        seq_len=count(eager["seq_len"]),
        batch=count(eager["batch_size"]),
        head_dim=count(eager["head_dim"]),
        eager=significant(eager["kept_bytes"] / GIB),
        most=significant(eager["most_bytes"] / GIB),
        flash=significant(flash["kept_bytes"] / GIB),
        times=number(eager["kept_bytes"] / flash["kept_bytes"]),
    )


def activations(rows: pd.DataFrame) -> Markdown:
    """Say what a transformer keeps from forward to backward, and the scores' share of it."""
    eager, flash = of_attention(rows, "eager"), of_attention(rows, "flash")
    return say(
        "A layer of {size} keeps (8·D + 4·F + H·S + 2) numbers a token from forward to backward: at batch {batch} and "
        "context {seq_len} {eager}, of which the scores {share}; with a flash kernel {flash}.",
        size=eager["size"],
        batch=count(eager["batch_size"]),
        seq_len=count(eager["seq_len"]),
        eager=data_size(eager["activation_bytes"]),
        share=percent(eager["scores_bytes"] / eager["activation_bytes"]),
        flash=data_size(flash["activation_bytes"]),
    )
