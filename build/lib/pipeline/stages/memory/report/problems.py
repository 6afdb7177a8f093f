"""The assignment's questions about memory, answered from the recordings."""

from collections.abc import Sequence
from dataclasses import replace

from pipeline.formulas.activations import residual_stream_bytes, weight_copy_bytes
from pipeline.formulas.peak_memory import MODES
from pipeline.formulas.units import FP32_BYTES
from pipeline.report.markup import Markdown, code
from pipeline.report.page_parts import Problem
from pipeline.report.section import count, counted, data_size, listing, mib, ratio
from pipeline.stages.memory.report.facts import (
    ATTENTION_WORDS,
    CATEGORY_WORDS,
    MODE_WORDS,
    Recording,
    headline,
    plain_steps,
)

LARGEST_SAVED = 5


def problems(shown: Sequence[Recording]) -> list[Problem]:
    """Answer each question that the recordings bear on: all but the last from eager attention without checkpoints."""
    plain = [one for one in shown if one.plain and one.measured]
    answers = {
        "a": _phases(plain_steps(plain)),
        "b": _peaks(plain),
        "c": _mixed_precision(plain),
        "d": _residual_stream([one for one in plain if one.cell.precision == "fp32" and len(one.of("residual"))]),
        "e": _largest([one for one in plain if one.cell.precision == "fp32" and len(one.of("largest"))]),
        "f": _block([one for one in shown if len(one.of("block"))]),
    }
    return [Problem(f"memory_profiling ({letter})", text) for letter, text in answers.items() if text]


def _phases(steps: Sequence[Recording]) -> str:
    if not steps:
        return ""
    lead = headline(steps)
    forward, backward, optimizer = (lead.last_step[name] for name in ("forward", "backward", "optimizer"))
    peaks = listing(data_size(peak.total_bytes) for peak in (forward, backward, optimizer))
    return (
        f"{lead.setting}: forward, backward and optimizer peak at {peaks}. Forward piles up activations "
        f"({data_size(forward.made_of['activations'])} at its highest), backward frees them while gradients appear, "
        f"and the optimizer has {data_size(optimizer.made_of['gradients'])} of gradients and "
        f"{data_size(optimizer.made_of['temporaries'])} of temporaries of its own."
    )


def _peaks(plain: Sequence[Recording]) -> str:
    if not plain:
        return ""
    precision = plain[0].cell.precision
    alike = [one for one in plain if one.cell.precision == precision]
    modes = []
    for mode in MODES:
        of_mode = [one for one in alike if one.cell.mode == mode]
        ends = [f"{one.size} at context {one.cell.context_length}" for one in dict.fromkeys(of_mode[:1] + of_mode[-1:])]
        modes += [f"{MODE_WORDS[mode]} {listing(ends)}"] if ends else []
    contexts = [one.cell.context_length for one in plain_steps(alike) if one.peak.phase == "optimizer"]
    words = f" At {listing(contexts)} the step's peak is AdamW's update, which no context changes." if contexts else ""
    return f"Peaks in {precision}: {'; '.join(modes)}.{words}"


def _mixed_precision(plain: Sequence[Recording]) -> str:
    """Set the peak in bf16 over that in fp32, at the longest context of each mode that has both."""
    fp32 = {one.cell: one for one in plain if one.cell.precision == "fp32"}
    bf16 = [one for one in plain if one.cell.precision == "bf16"]
    pairs = {one.mode: (one, fp32.get(replace(one.cell, precision="fp32"))) for one in bf16}
    ratios = [
        f"{mode} {ratio(one.peak.total_bytes / base.peak.total_bytes)} at context {one.cell.context_length}"
        for mode, (one, base) in pairs.items()
        if base
    ]
    if not ratios:
        return ""
    copies = max(weight_copy_bytes(one.workload) for one in bf16)
    return (
        f"The peak in bf16 autocast over that in fp32: {'; '.join(ratios)}. Parameters, gradients and moments stay in "
        f"fp32, and autocast caches bf16 copies of the weights ({data_size(copies)} by formula)."
    )


def _residual_stream(seen: Sequence[Recording]) -> str:
    if not seen:
        return ""
    one, sums = seen[-1], seen[-1].of("residual").iloc[0]
    size, expected = one.workload.size, residual_stream_bytes(one.workload)
    recorded = {sums["smallest_bytes"], sums["size_bytes"]}
    if recorded == {expected} and sums["count"] == 2 * size.num_layers:
        held = f"The recording has {counted(sums['count'], 'tensor')} of just this size, two a block."
    elif sums["count"]:
        held = f"The recorded sums of the blocks have {listing(map(mib, sorted(recorded)))}."
    else:
        held = "The recording shows no such tensor."
    return (
        f"batch × context × d_model × bytes = {one.batch_size} × {one.cell.context_length} × {size.d_model} × "
        f"{FP32_BYTES} = {count(expected)} bytes = {mib(expected)} in fp32. {held}"
    )


def _largest(seen: Sequence[Recording]) -> Markdown | None:
    """Name the largest allocations of a forward pass alone, in fp32, at the longest context."""
    if not seen:
        return None
    one = min(reversed(seen), key=lambda one: MODES.index(one.cell.mode))
    largest = one.of("largest").sort_values("rank")
    top = largest[largest["size_bytes"] == largest["size_bytes"].max()]
    lines = listing(
        Markdown(f"{count(times)} of {CATEGORY_WORDS[category]} at {code(location)}")
        for times, category, location in zip(top["count"], top["category"], top["location"], strict=True)
    )
    size = mib(top["size_bytes"].iloc[0])
    return Markdown(f"The largest allocations of a {one.mode} ({one.setting}) are {size} each: {lines}.")


def _block(of_block: Sequence[Recording]) -> Markdown | None:
    """Name the largest tensors that a block saves, at the longest context and rather in bf16."""
    if not of_block:
        return None
    one = max(of_block, key=lambda one: (one.cell.context_length, one.cell.precision == "bf16"))
    block, tensors = one.of("block").iloc[0], one.of("block_saved").sort_values("rank")
    largest = ", ".join(
        data_size(row.size_bytes) + " " + code(f"{row.module or 'block'} {row.operation}")
        for row in tensors.head(LARGEST_SAVED).itertuples()
    )
    return Markdown(
        f"A block ({one.setting}, {ATTENTION_WORDS[one.cell.attention]}) saves {data_size(block['saved_bytes'])} in "
        f"{counted(len(tensors), 'tensor')}, without parameters; the largest are {largest}. Its backward pass makes "
        f"{data_size(block['gradients_bytes'])} of gradients of parameters and "
        f"{data_size(block['input_gradient_bytes'])} for its input."
    )
