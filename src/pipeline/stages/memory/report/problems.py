"""The assignment's questions about memory, answered from the recordings."""

from collections.abc import Sequence
from dataclasses import replace

from pipeline.formulas.activations import residual_stream_bytes, weight_copy_bytes
from pipeline.formulas.peak_memory import MODES
from pipeline.formulas.units import FP32_BYTES
from pipeline.report.markup import Markdown, code
from pipeline.report.page_parts import Problem, say
from pipeline.report.section import count, counted, data_size, listing, mib, ratio
from pipeline.stages.memory.report.facts import CATEGORY_WORDS, MODE_WORDS, Recording, headline, plain_steps

LARGEST_SAVED = 5


def problems(shown: Sequence[Recording]) -> list[Problem]:
    """Answer each question for which there are recordings with eager attention and no checkpoints."""
    plain = [recording for recording in shown if recording.plain and recording.measured]
    questions = {"a": _phases, "b": _peaks, "c": _mixed_precision, "d": _residual_stream, "e": _largest}
    answers = {letter: answer(plain) for letter, answer in questions.items()}
    found = [Problem(f"memory_profiling ({letter})", Markdown(text)) for letter, text in answers.items() if text]
    of_block = [one for one in shown if one.block is not None]
    return [*found, *([Problem("memory_profiling (f)", _block(of_block))] if of_block else [])]


def _phases(plain: Sequence[Recording]) -> str:
    steps = plain_steps(plain)
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
        shortest_and_longest = of_mode if len(of_mode) < 2 else [of_mode[0], of_mode[-1]]
        ends = [f"{one.size} at context {one.cell.context_length}" for one in shortest_and_longest]
        modes += [f"{MODE_WORDS[mode]} {listing(ends)}"] if ends else []
    contexts = [one.cell.context_length for one in plain_steps(alike) if one.peak.phase == "optimizer"]
    words = f" At {listing(contexts)} the step's peak is AdamW's update, which no context changes." if contexts else ""
    return f"Peaks in {precision}: {'; '.join(modes)}.{words}"


def _mixed_precision(plain: Sequence[Recording]) -> str:
    """Set the peak in bf16 over that in fp32, at the longest context of each mode that has both."""
    fp32 = {one.cell: one for one in plain if one.cell.precision == "fp32"}
    pairs = {
        one.mode: (one, fp32[replace(one.cell, precision="fp32")])
        for one in plain
        if one.cell.precision == "bf16" and replace(one.cell, precision="fp32") in fp32
    }
    if not pairs:
        return ""
    ratios = [
        f"{mode} {ratio(bf16.peak.total_bytes / base.peak.total_bytes)} at context {bf16.cell.context_length}"
        for mode, (bf16, base) in pairs.items()
    ]
    copies = max(weight_copy_bytes(bf16.workload) for bf16, _ in pairs.values())
    return (
        f"The peak in bf16 autocast over that in fp32: {'; '.join(ratios)}. Parameters, gradients and moments stay in "
        f"fp32, and autocast caches bf16 copies of the weights ({data_size(copies)} by formula)."
    )


def _residual_stream(plain: Sequence[Recording]) -> str:
    seen = [one for one in plain if one.residual is not None and one.cell.precision == "fp32"]
    if not seen:
        return ""
    one = seen[-1]
    size, expected = one.workload.size, residual_stream_bytes(one.workload)
    recorded = {one.residual["smallest_bytes"], one.residual["size_bytes"]}
    if recorded == {expected} and one.residual["count"] == 2 * size.num_layers:
        held = f"The recording has {counted(one.residual['count'], 'tensor')} of just this size, two a block."
    elif one.residual["count"]:
        held = f"The recorded sums of the blocks have {listing(mib(seen_bytes) for seen_bytes in sorted(recorded))}."
    else:
        held = "The recording shows no such tensor."
    return (
        f"batch × context × d_model × bytes = {one.batch_size} × {one.cell.context_length} × {size.d_model} × "
        f"{FP32_BYTES} = {count(expected)} bytes = {mib(expected)} in fp32. {held}"
    )


def _largest(plain: Sequence[Recording]) -> str:
    """Name the largest allocations of a forward pass alone, in fp32, at the longest context."""
    with_rows = [one for one in plain if len(one.largest) and one.cell.precision == "fp32"]
    if not with_rows:
        return ""
    first_mode = min(MODES.index(one.cell.mode) for one in with_rows)
    one = [recording for recording in with_rows if MODES.index(recording.cell.mode) == first_mode][-1]
    top = one.largest[one.largest["size_bytes"] == one.largest["size_bytes"].max()]
    lines = [
        say("{n} of {what} at {where}", n=count(n), what=CATEGORY_WORDS[name], where=code(location))
        for n, name, location in zip(top["count"], top["category"], top["location"], strict=True)
    ]
    size = mib(top["size_bytes"].iloc[0])
    return f"The largest allocations of a {one.mode} ({one.setting}) are {size} each: {listing(lines)}."


def _block(of_block: Sequence[Recording]) -> Markdown:
    """Name the largest tensors that a block saves, at the longest context and rather in bf16."""
    one = max(of_block, key=lambda one: (one.cell.context_length, one.cell.precision == "bf16"))
    largest = one.block_saved.head(LARGEST_SAVED)
    lines = [
        say("{size} {what}", size=data_size(size), what=code(f"{module or 'block'} {operation}"))
        for size, module, operation in zip(largest["size_bytes"], largest["module"], largest["operation"], strict=True)
    ]
    return say(
        "A block ({setting}, {attention}) saves {saved} in {tensors}, without parameters; the largest are {largest}. "
        "Its backward pass makes {gradients} of gradients of parameters and {of_input} for its input.",
        setting=one.setting,
        attention=one.cell.attention,
        saved=data_size(one.block["saved_bytes"]),
        tensors=counted(len(one.block_saved), "tensor"),
        largest=Markdown(", ").join(lines),
        gradients=data_size(one.block["gradients_bytes"]),
        of_input=data_size(one.block["input_gradient_bytes"]),
    )
