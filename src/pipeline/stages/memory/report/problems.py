"""The assignment's questions about memory, answered from the recordings."""

from collections.abc import Sequence

from pipeline.formulas.activations import residual_stream_bytes, weight_copy_bytes
from pipeline.formulas.peak_memory import MODES
from pipeline.formulas.units import FP32_BYTES
from pipeline.report.markup import Markdown, code
from pipeline.report.page_parts import Problem, say
from pipeline.report.section import count, counted, data_size, listing, mib, ratio
from pipeline.stages.memory.report.facts import CATEGORY_WORDS, MODE_WORDS, Recording, headline, plain_steps, setting


def problems(shown: Sequence[Recording]) -> list[Problem]:
    """Answer each question for which there are recordings with eager attention and no checkpoints."""
    plain = [recording for recording in shown if recording.plain and recording.measured]
    answers = {
        "a": _phases(plain),
        "b": _peaks(plain),
        "c": _mixed_precision(plain),
        "d": _residual_stream(plain),
        "e": _largest(plain),
    }
    return [Problem(f"memory_profiling ({letter})", answer) for letter, answer in answers.items() if answer]


def _phases(plain: Sequence[Recording]) -> Markdown:
    steps = plain_steps(plain)
    if not steps:
        return Markdown()
    lead = headline(steps)
    peaks = lead.last_step
    return say(
        "{setting}: forward, backward and optimizer peak at {peaks}. Forward piles up activations ({activations} at "
        "its highest), backward frees them while gradients appear, and the optimizer has {gradients} of gradients and "
        "{temporaries} of temporaries of its own.",
        setting=setting(lead),
        peaks=listing(data_size(peaks[name].total_bytes) for name in ("forward", "backward", "optimizer")),
        activations=data_size(peaks["forward"].made_of["activations"]),
        gradients=data_size(peaks["optimizer"].made_of["gradients"]),
        temporaries=data_size(peaks["optimizer"].made_of["temporaries"]),
    )


def _peaks(plain: Sequence[Recording]) -> Markdown:
    if not plain:
        return Markdown()
    precision = plain[0].cell.precision
    modes = []
    for mode in MODES:
        alike = [one for one in plain if one.cell.mode == mode and one.cell.precision == precision]
        shortest_and_longest = alike if len(alike) < 2 else [alike[0], alike[-1]]
        ends = [
            f"{data_size(one.peak.total_bytes)} at context {one.cell.context_length}" for one in shortest_and_longest
        ]
        if ends:
            modes.append(f"{MODE_WORDS[mode]} {listing(ends)}")
    steps = [one for one in plain_steps(plain) if one.cell.precision == precision and one.peak.phase == "optimizer"]
    update = ""
    if steps:
        contexts = listing(one.cell.context_length for one in steps)
        update = f" At {contexts} the step's peak is AdamW's update, which no context length changes."
    return say("Peaks in {precision}: {modes}.{update}", precision=precision, modes="; ".join(modes), update=update)


def _mixed_precision(plain: Sequence[Recording]) -> Markdown:
    fp32 = {recording.cell: recording for recording in plain if recording.cell.precision == "fp32"}
    ratios, last = [], None
    for mode in MODES:
        pairs = [
            (recording, fp32[recording.like(precision="fp32")])
            for recording in plain
            if recording.cell.mode == mode
            and recording.cell.precision == "bf16"
            and recording.like(precision="fp32") in fp32
        ]
        if pairs:
            last, base = pairs[-1]
            over = ratio(last.peak.total_bytes / base.peak.total_bytes)
            ratios.append(f"{MODE_WORDS[mode]} {over} at context {last.cell.context_length}")
    if last is None:
        return Markdown()
    return say(
        "The peak in bf16 autocast over that in fp32: {ratios}. Parameters, gradients and moments stay in fp32, and "
        "autocast caches bf16 copies of the weights ({copies} by formula).",
        ratios="; ".join(ratios),
        copies=data_size(weight_copy_bytes(last.workload)),
    )


def _residual_stream(plain: Sequence[Recording]) -> Markdown:
    seen = [one for one in plain if one.residual is not None and one.cell.precision == "fp32"]
    if not seen:
        return Markdown()
    one = seen[-1]
    size, expected = one.workload.size, residual_stream_bytes(one.workload)
    recorded = {one.residual["smallest_bytes"], one.residual["size_bytes"]}
    if recorded == {expected} and one.residual["count"] == 2 * size.num_layers:
        held = f"The recording has {counted(one.residual['count'], 'tensor')} of just this size, two a block."
    elif one.residual["count"]:
        held = f"The recorded sums of the blocks have {listing(mib(seen_bytes) for seen_bytes in sorted(recorded))}."
    else:
        held = "The recording shows no such tensor."
    return say(
        "batch × context × d_model × bytes = {batch} × {context} × {d_model} × {element} = {bytes} bytes = {mib} in "
        "fp32. {held}",
        batch=one.batch_size,
        context=one.cell.context_length,
        d_model=size.d_model,
        element=FP32_BYTES,
        bytes=count(expected),
        mib=mib(expected),
        held=held,
    )


def _largest(plain: Sequence[Recording]) -> Markdown:
    """Name the largest allocations of a forward pass alone, in fp32, at the longest context."""
    with_rows = [one for one in plain if len(one.largest) and one.cell.precision == "fp32"]
    if not with_rows:
        return Markdown()
    mode = next(mode for mode in MODES if mode in {one.cell.mode for one in with_rows})
    one = [recording for recording in with_rows if recording.cell.mode == mode][-1]
    top = one.largest[one.largest["size_bytes"] == one.largest["size_bytes"].max()]
    lines = zip(top["count"], top["category"], top["location"], strict=True)
    return say(
        "The largest allocations of a {mode} ({setting}) have {size}: {lines}.",
        mode=MODE_WORDS[mode],
        setting=setting(one),
        size=mib(top["size_bytes"].iloc[0]),
        lines=listing(
            say("{n} of {what} at {where}", n=count(n), what=CATEGORY_WORDS[name], where=code(location))
            for n, name, location in lines
        ),
    )
