"""What checkpoints cost and save: by the number of blocks, and by the blocks between two of them."""

from collections.abc import Sequence
from dataclasses import replace

from pipeline.formulas.activations import block_bytes, block_weight_copy_bytes, residual_stream_bytes
from pipeline.formulas.checkpointing import blocks_run_again, reruns
from pipeline.formulas.peak_memory import predict_peaks
from pipeline.report.page_parts import Problem
from pipeline.report.section import counted, data_size, listing, number
from pipeline.stages.memory.report.facts import ATTENTION_WORDS, Recording, alike


def problems(recorded: Sequence[Recording]) -> list[Problem]:
    """Answer gradient_checkpointing (a), the least peak, and (b), the best number of blocks between checkpoints."""
    steps = [one for one in recorded if one.measured and one.cell.mode == "train_step"]
    answers = {
        "a": _least_peak([one for one in steps if one.cell.num_layers]),
        "b": _best_interval([one for one in steps if not one.cell.num_layers]),
    }
    return [Problem(f"gradient_checkpointing ({letter})", text) for letter, text in answers.items() if text]


def backward_bytes(one: Recording) -> int:
    """Return what the peak of the backward pass has beside parameters and moments: what checkpoints can lower."""
    made_of = one.last_step["backward"].made_of
    return made_of["gradients"] + made_of["activations"] + made_of["temporaries"]


def block_over_input(one: Recording) -> float:
    """Return what a block saves, in units of its input."""
    return (block_bytes(one.workload) + block_weight_copy_bytes(one.workload)) / residual_stream_bytes(one.workload)


def _least_peak(steps: Sequence[Recording]) -> str:
    """Tell of the steps with the most blocks, of the workload with the most such steps."""
    workloads = alike(steps, num_layers=0, checkpoint_every=0, checkpointing="segments")
    most = max(workloads, key=len, default=[])
    layers = max((one.cell.num_layers for one in most if one.cell.checkpointing == "recursive"), default=0)
    deepest = [one for one in most if one.cell.num_layers == layers]
    halved = next((one for one in deepest if one.cell.checkpointing == "recursive"), None)
    if halved is None:
        return ""
    every = halved.cell.checkpoint_every
    inputs = 1 + max(rerun.inputs for rerun in reruns(layers, every, "recursive"))
    others = [
        f"; {data_size(backward_bytes(one))} in {one.time} with {one.checkpoints}"
        for one in deepest
        if one is not halved
    ]
    return (
        "Least memory if computing costs nothing: keep no input but the model's and run all blocks before each block "
        "again, O(1) inputs and O(N²) blocks. Recursive halving needs hardly more: keep the inputs of both halves, and "
        "do the same in a half when its turn comes; O(log N) inputs and one block's tensors at the peak, O(N·log N) "
        f"blocks. At {layers} blocks ({halved.setting}) at most {counted(inputs, 'input')} are alive and "
        f"{blocks_run_again(layers, every, 'recursive'):,} run again; the backward pass peaks at "
        f"{data_size(backward_bytes(halved))} beside parameters and moments in a step of {halved.time}"
        f"{''.join(others)}."
    )


def _best_interval(steps: Sequence[Recording]) -> str:
    """Compare the measured numbers of blocks between checkpoints at the longest context that has several."""
    checkpointed = [one for one in steps if one.cell.checkpoint_every and one.cell.checkpointing == "segments"]
    several = [ones for ones in alike(checkpointed, checkpoint_every=0) if len(ones) > 1]
    if not several:
        return ""
    ones = max(several, key=lambda ones: (ones[0].cell.context_length, len(ones)))
    ones = sorted(ones, key=lambda one: one.cell.checkpoint_every)
    peaks = [max(one.last_step[phase].total_bytes for phase in ("forward", "backward")) for one in ones]
    best = peaks.index(min(peaks))
    shown = range(max(0, best - 1), min(len(ones), best + 2))
    layers = ones[0].workload.size.num_layers
    predicted = min(range(1, layers + 1), key=lambda every: _predicted_before_update(ones[0], every))
    named = listing(f"{data_size(peaks[n])} with {ones[n].checkpoints} ({ones[n].time})" for n in shown)
    return (
        f"{ones[0].setting}, {ATTENTION_WORDS[ones[0].cell.attention]}: forward and backward peak at {named}; of the "
        "measured intervals "
        f"{ones[best].cell.checkpoint_every} is best, by formula {predicted} of 1 to {layers}. One level of "
        "checkpoints costs N/k inputs and k blocks' tensors; here a block saves as much as "
        f"{number(block_over_input(ones[0]))} inputs."
    )


def _predicted_before_update(one: Recording, every: int) -> int:
    moments = predict_peaks(replace(one.workload, checkpoint_every=every), "train_step")
    return max(moments[phase].total_bytes for phase in ("forward", "backward"))
