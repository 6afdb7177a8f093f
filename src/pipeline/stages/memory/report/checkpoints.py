"""What checkpoints cost and save: by the number of blocks, and by the blocks between two of them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pipeline.formulas.activations import block_bytes, block_weight_copy_bytes, residual_stream_bytes
from pipeline.formulas.checkpointing import blocks_run_again, reruns
from pipeline.formulas.flops import rerun_flops, train_step_flops
from pipeline.formulas.peak_memory import predict_peaks
from pipeline.report.figures import COLOURS, MARKERS, footnote, new_figure, shared_legend
from pipeline.report.markup import Markdown
from pipeline.report.page_parts import Figure as FigurePart
from pipeline.report.page_parts import Problem, say
from pipeline.report.section import count, counted, data_size, listing, number
from pipeline.stages.memory.report.facts import Recording, Unit

NONE = "no checkpoints"


def by_depth(recorded: Sequence[Recording]) -> dict[str, list[Recording]]:
    """Group the training steps of a chosen number of blocks by their checkpoints, fewest blocks first.

    Only the workload with the most such steps is kept, and of it only what was measured.
    """
    groups: dict[object, list[Recording]] = {}
    for one in recorded:
        if one.cell.num_layers and one.cell.mode == "train_step" and one.measured:
            like = replace(one.cell, num_layers=0, checkpoint_every=0, checkpointing="segments")
            groups.setdefault(like, []).append(one)
    found: dict[str, list[Recording]] = {}
    for one in sorted(max(groups.values(), key=len, default=[]), key=lambda one: one.cell.num_layers):
        found.setdefault(one.checkpoints, []).append(one)
    return found


def backward_bytes(one: Recording) -> int:
    """Return what the peak of the backward pass has beside parameters and moments: what checkpoints can lower."""
    return _beside_state(one.last_step["backward"].made_of)


def depth_figure(recorded: Sequence[Recording], unit: Unit) -> list[FigurePart]:
    """Draw memory and time against the number of blocks, measured (markers) and by formula (lines)."""
    groups = by_depth(recorded)
    deepest = {words: ones[-1] for words, ones in groups.items()}
    most = max((one.cell.num_layers for one in deepest.values()), default=0)
    if len({one.cell.num_layers for ones in groups.values() for one in ones}) < 2:
        return []
    ends = [f"{data_size(backward_bytes(one))} with {words}" for words, one in deepest.items() if _depth(one) == most]
    title = (
        "Gradients, activations and temporaries at the peak of the backward pass, and the step's time, against the "
        f"number of blocks: at {most} {listing(ends)}"
    )
    return [FigurePart("depth", Markdown(title), _drawn(groups, unit))]


def _drawn(groups: Mapping[str, Sequence[Recording]], unit: Unit) -> Figure:
    figure, panels = new_figure(1, 2, panel_height_in=3.4)
    memory, time = panels[0]
    base_ms = {_depth(one): one.step_ms for one in groups.get(NONE, [])}
    for (words, ones), colour, marker in zip(groups.items(), COLOURS, MARKERS, strict=False):
        look = {"color": colour, "marker": marker, "linestyle": "", "label": words}
        depths = range(_depth(ones[0]), _depth(ones[-1]) + 1)
        memory.plot([_depth(one) for one in ones], [backward_bytes(one) / unit.bytes for one in ones], **look)
        memory.plot(depths, [_predicted_bytes(ones[0], depth) / unit.bytes for depth in depths], color=colour)
        timed = [one for one in ones if one.step is not None and _depth(one) in base_ms]
        time.plot([_depth(one) for one in timed], [one.step_ms / base_ms[_depth(one)] for one in timed], **look)
        time.plot(depths, [_predicted_time_ratio(ones[0], depth) for depth in depths], color=colour)
    memory.set_ylabel(f"backward peak ({unit.name})")
    memory.set_yscale("log")
    time.set_ylabel("time over no checkpoints")
    for axes in (memory, time):
        _depth_axis(axes, sorted({_depth(one) for ones in groups.values() for one in ones}))
    shared_legend(figure, per_row=3)
    one = next(iter(groups.values()))[0]
    workload = f"{one.cell.size}, {one.cell.precision}, batch {one.batch_size}, context {one.cell.context_length}"
    footnote(figure, one.machine, workload, "without parameters and moments", "lines: by formula; of time, the FLOPs")
    return figure


def _depth_axis(axes: Axes, depths: Sequence[int]) -> None:
    axes.set_xscale("log")
    axes.set_xticks(depths, [str(depth) for depth in depths])
    axes.minorticks_off()
    axes.set_xlabel("blocks")


def block_over_input(one: Recording) -> float:
    """Return what a block saves, in units of its input."""
    return (block_bytes(one.workload) + block_weight_copy_bytes(one.workload)) / residual_stream_bytes(one.workload)


def problems(recorded: Sequence[Recording]) -> list[Problem]:
    """Answer gradient_checkpointing (a), the least peak, and (b), the best number of blocks between checkpoints."""
    answers = {"a": _least_peak(recorded), "b": _best_interval(recorded)}
    return [Problem(f"gradient_checkpointing ({letter})", text) for letter, text in answers.items() if text]


def _least_peak(recorded: Sequence[Recording]) -> Markdown:
    groups = by_depth(recorded)
    halved = [one for ones in groups.values() for one in ones if one.cell.checkpointing == "recursive"]
    if not halved:
        return Markdown()
    deepest = halved[-1]
    layers, every = _depth(deepest), deepest.cell.checkpoint_every
    others = [one for ones in groups.values() for one in ones if _depth(one) == layers and one is not deepest]
    inputs = 1 + max(rerun.inputs for rerun in reruns(layers, every, "recursive"))
    return say(
        "Least memory if computing costs nothing: keep no input but the model's and run all blocks before each block "
        "again, O(1) inputs and O(N²) blocks. Recursive halving needs hardly more: keep the inputs of both halves, and "
        "do the same in a half when its turn comes; O(log N) inputs and one block's tensors at the peak, O(N·log N) "
        "blocks. At {layers} blocks ({setting}) at most {inputs} are alive and {again} run again; the backward pass "
        "peaks at {bytes} beside parameters and moments in a step of {time}{others}.",
        layers=count(layers),
        setting=deepest.setting,
        inputs=counted(inputs, "input"),
        again=count(blocks_run_again(layers, every, "recursive")),
        bytes=data_size(backward_bytes(deepest)),
        time=deepest.time,
        others="".join(f"; {data_size(backward_bytes(one))} in {one.time} with {one.checkpoints}" for one in others),
    )


def _best_interval(recorded: Sequence[Recording]) -> Markdown:
    """Compare the measured numbers of blocks between checkpoints at the longest context that has several."""
    groups: dict[object, list[Recording]] = {}
    for one in recorded:
        in_segments = one.cell.checkpoint_every and one.cell.checkpointing == "segments" and not one.cell.num_layers
        if in_segments and one.measured and one.cell.mode == "train_step":
            groups.setdefault(replace(one.cell, checkpoint_every=0), []).append(one)
    several = [sorted(ones, key=lambda one: one.cell.checkpoint_every) for ones in groups.values() if len(ones) > 1]
    if not several:
        return Markdown()
    ones = max(several, key=lambda ones: (ones[0].cell.context_length, len(ones)))
    peaks = [_before_update(one) for one in ones]
    best = peaks.index(min(peaks))
    shown = range(max(0, best - 1), min(len(ones), best + 2))
    layers = ones[0].workload.size.num_layers
    predicted = min(range(1, layers + 1), key=lambda every: _predicted_before_update(ones[0], every))
    return say(
        "{setting}, {attention}: forward and backward peak at {peaks}; of the measured intervals {best} is best, by "
        "formula {predicted} of 1 to {layers}. One level of checkpoints costs N/k inputs and k blocks' tensors; here a "
        "block saves as much as {inputs} inputs.",
        setting=ones[0].setting,
        attention=ones[0].cell.attention,
        peaks=listing(f"{data_size(peaks[n])} with {ones[n].checkpoints} ({ones[n].time})" for n in shown),
        best=count(ones[best].cell.checkpoint_every),
        predicted=count(predicted),
        layers=count(layers),
        inputs=number(block_over_input(ones[0])),
    )


def _before_update(one: Recording) -> int:
    return max(one.last_step[phase].total_bytes for phase in ("forward", "backward"))


def _predicted_before_update(one: Recording, every: int) -> int:
    moments = predict_peaks(replace(one.workload, checkpoint_every=every), "train_step")
    return max(moments[phase].total_bytes for phase in ("forward", "backward"))


def _predicted_bytes(one: Recording, num_layers: int) -> int:
    workload = replace(one.workload, size=replace(one.workload.size, num_layers=num_layers))
    return _beside_state(predict_peaks(workload, "train_step")["backward"].bytes_by_category)


def _beside_state(made_of: Mapping[str, int]) -> int:
    return made_of["gradients"] + made_of["activations"] + made_of["temporaries"]


def _predicted_time_ratio(one: Recording, num_layers: int) -> float:
    size = replace(one.workload.size, num_layers=num_layers)
    shape = one.batch_size, one.cell.context_length
    again = rerun_flops(size, *shape, one.cell.checkpoint_every, one.cell.checkpointing)
    return 1 + again / train_step_flops(size, one.vocab_size, *shape)


def _depth(one: Recording) -> int:
    return one.cell.num_layers
