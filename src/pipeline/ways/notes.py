"""Actions for the first turn of a way: a stage chooses which ones and in what order, and every rank runs them."""

import torch.distributed as dist

from pipeline.instruments.memory.rank_memory import peak_bytes_over_ranks, reset_peak
from pipeline.instruments.profilers.collective_traffic import CollectiveLog
from pipeline.instruments.sampling.rank_timing import time_steps_over_ranks
from pipeline.instruments.sampling.step_timing import Phases
from pipeline.model.step import TrainingStep
from pipeline.ways.way import Turn


def phases(step: TrainingStep) -> Phases:
    """Return the step's phases in order; `communication` is the wait that remains after backward."""
    waiting = {} if step.finish_gradients is None else {"communication": step.synchronize_gradients}
    return {"forward": step.forward, "backward": step.backward, **waiting, "optimizer": step.optimizer_step}


def warm_up(turn: Turn) -> None:
    """Run the warmup steps, then reset the peak: in its second step torch's DDP holds its buckets twice."""
    for _ in range(turn.settings.warmup_steps):
        turn.step.run()
    reset_peak(turn.context.device)
    turn.is_warm = True


def time_steps(turn: Turn) -> None:
    """Time training steps, after warmup steps unless the step is warm already."""
    warmup_steps = 0 if turn.is_warm else turn.settings.warmup_steps
    turn.result.samplings.append(
        time_steps_over_ranks(phases(turn.step), turn.context.device, warmup_steps, turn.settings.steps)
    )


def note_parameters(turn: Turn) -> None:
    """Note the bytes of each trained parameter."""
    parameters = turn.step.model.parameters()
    turn.result.parameter_bytes = [parameter.nbytes for parameter in parameters if parameter.requires_grad]


def note_peak(turn: Turn) -> None:
    """Note the peak of allocated GPU memory since it was last reset; on a CPU note nothing."""
    peak_bytes = peak_bytes_over_ranks(turn.context.device)
    if peak_bytes is not None:
        turn.result.memory["peak"] = peak_bytes


def note_traffic(turn: Turn) -> None:
    """Note the collectives of a step.

    Raises RuntimeError if one of our own ways communicates but its logged collectives carry no gradients.
    """
    with CollectiveLog() as log:
        turn.step.run()
    # Leaves out the byte per parameter that tells whether it has a gradient.
    turn.result.collectives = [call for call in log.calls if call.dtype.is_floating_point]
    carries = any("reduce" in call.name for call in turn.result.collectives)
    if turn.way.communicates and not turn.way.is_own and not carries:
        raise RuntimeError("no gradients of a step were logged: the log does not reach the thread that sends them")


def note_loss(turn: Turn) -> None:
    """Run one more step and note the mean loss over the ranks."""
    losses = turn.step.run()
    dist.all_reduce(losses)
    turn.result.loss = losses.item() / turn.context.world_size


def compare_weights(turn: Turn) -> None:
    """Compare the weights with those of the first way that communicates, and between ranks."""
    turn.result.differences = turn.comparison.differences(turn.weights(turn.step), turn.context.device)


def compare_if_communicates(turn: Turn) -> None:
    """Compare the weights of a way whose ranks should agree."""
    if turn.way.communicates:
        compare_weights(turn)
