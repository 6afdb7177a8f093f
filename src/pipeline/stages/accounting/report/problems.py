"""What the closed forms answer to the assignment's problems: two sentences and a formula each."""

import pandas as pd

from pipeline.formulas.units import GB, GIB
from pipeline.report.markup import Markdown
from pipeline.report.page_parts import say
from pipeline.report.section import count, data_size, ms, number, percent
from pipeline.report.tables import significant
from pipeline.stages.accounting.report.facts import least_devices, main_row, mesh_levers, most_tokens, of_attention
from pipeline.stages.accounting.report.words import MESH_CASES, PARALLEL_CASES


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


def ring(rows: pd.DataFrame) -> Markdown:
    """Answer what all-reducing costs if a ring passes whole tensors around."""
    most = rows[rows["num_devices"] == rows["num_devices"].max()].set_index("case")
    shares, whole = most.loc["shares"], most.loc["whole"]
    return say(
        "Each of N − 1 steps sends a whole tensor: (N − 1)·S / W, against 2·(N − 1) / N·S / W with shares of it, N / 2 "
        "times as long. For the gradients of {size}, {gradients}, over {n} devices that each send {w} GB/s: {whole} "
        "against {shares}.",
        size=shares["size"],
        gradients=data_size(shares["gradient_bytes"]),
        n=count(shares["num_devices"]),
        w=f"{shares['setting_egress_gbytes_per_s']:g}",
        whole=ms(whole["ring_ms"]),
        shares=ms(shares["ring_ms"]),
    )


def data_parallel(rows: pd.DataFrame) -> Markdown:
    """Answer up to how many devices data parallelism hides its all-reduce."""
    return Markdown(
        "A device does 6·T·D·F / N FLOPs forward, twice that backward, sends nothing forward and all-reduces 6·D·F "
        "bytes of gradients backward, 12·D·F·(N − 1) / (N·W) seconds: hidden up to N = 1 + T·W / C. "
    ) + _limit(rows, "data_parallel", "backward")


def fully_sharded(rows: pd.DataFrame) -> Markdown:
    """Answer up to how many devices FSDP hides its transfers."""
    return Markdown(
        "FLOPs are those of data parallelism. Forward gathers the weights, 6·D·F·(N − 1) / (N·W) seconds; backward "
        "gathers them again and scatters gradients, twice that: hidden in both passes up to N = 1 + T·W / C. "
    ) + _limit(rows, "fsdp", "forward")


def tensor_parallel(rows: pd.DataFrame) -> Markdown:
    """Answer up to how many devices tensor parallelism hides its transfers."""
    return (
        Markdown(
            "FLOPs are the same; forward all-reduces the output, backward the input's gradient, 4·T·D·(N − 1) / (N·W) "
            "seconds each: hidden forward up to N = 1 + 3/2·F·W / C, backward up to 1 + 3·F·W / C, whatever the batch. "
        )
        + _limit(rows, "tensor", "forward")
        + Markdown(" ")
        + _limit(rows, "tensor", "backward")
    )


def both_axes(rows: pd.DataFrame) -> Markdown:
    """Answer up to how many devices both together hide their transfers, each at its best split."""
    return (
        Markdown(
            "With X devices for FSDP and Y for tensor parallelism, a = T·W / C and b = 3/2·F·W / C: if the transfers "
            "of both axes overlap, the longer one counts, and X = 1 + a, Y = 1 + b is best. If not, their sum counts: "
            "(X − 1) / a + (Y − 1) / b ≤ 1, best at X = 1 + a·t, Y = 1 + b·(1 − t), t = 1/2 + (1/b − 1/a) / 2 within 0 "
            "to 1. "
        )
        + _limit(rows, "fsdp_tensor", "forward", axes_overlap=True)
        + Markdown(" ")
        + _limit(rows, "fsdp_tensor", "forward", axes_overlap=False)
    )


def _limit(rows: pd.DataFrame, strategy: str, phase: str, axes_overlap: bool = False) -> Markdown:
    chosen = (rows["strategy"] == strategy) & (rows["phase"] == phase) & (rows["axes_overlap"] == axes_overlap)
    row = rows[chosen].iloc[0]
    return say(
        "{phase}, {case}, a layer of {size} with T = {tokens} (C = {c} TFLOP/s, W = {w} GB/s): {devices} devices "
        "({x} × {y}), where computing and communicating take {time} each.",
        phase=phase.capitalize(),
        case=PARALLEL_CASES[strategy, axes_overlap],
        size=row["size"],
        tokens=count(row["setting_batch_tokens"]),
        c=f"{row['setting_peak_tflops_per_s']:g}",
        w=f"{row['setting_egress_gbytes_per_s']:g}",
        devices=number(row["most_devices"]),
        x=number(row["batch_shares"]),
        y=number(row["width_shares"]),
        time=ms(row["compute_ms"]),
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
