"""What a stage may have done and noted in the first turn of a way, in an order of its own; every rank calls it."""

import torch.distributed as dist

from pipeline.instruments.memory.rank_memory import peak_bytes_over_ranks, reset_peak
from pipeline.instruments.profilers.collective_traffic import CollectiveLog
from pipeline.instruments.sampling.rank_timing import time_steps_over_ranks
from pipeline.instruments.sampling.step_timing import Phases
from pipeline.model.step import TrainingStep
from pipeline.ways.way import Turn


def phases(step: TrainingStep) -> Phases:
    """Return the step's phases in their order; `communication` is the wait that remains after backward."""
    waiting = {} if step.finish_gradients is None else {"communication": step.synchronize_gradients}
    return {"forward": step.forward, "backward": step.backward, **waiting, "optimizer": step.optimizer_step}


def warm_up(turn: Turn) -> None:
    """Run the steps that do not count, also for the peak of memory: in the second torch's DDP has its buckets twice."""
    for _ in range(turn.settings.warmup_steps):
        turn.step.run()
    reset_peak(turn.context.device)
    turn.is_warm = True


def time_steps(turn: Turn) -> None:
    """Time training steps, after some that warm up unless others have."""
    warmup_steps = 0 if turn.is_warm else turn.settings.warmup_steps
    turn.result.samplings.append(
        time_steps_over_ranks(phases(turn.step), turn.context.device, warmup_steps, turn.settings.steps)
    )


def note_parameters(turn: Turn) -> None:
    """Note the bytes of each parameter that is trained."""
    parameters = turn.step.model.parameters()
    turn.result.parameter_bytes = [parameter.nbytes for parameter in parameters if parameter.requires_grad]


def note_peak(turn: Turn) -> None:
    """Note the peak of allocated memory since the warm-up, or since it was begun anew, on a GPU."""
    peak_bytes = peak_bytes_over_ranks(turn.context.device)
    if peak_bytes is not None:
        turn.result.memory["peak"] = peak_bytes


def note_traffic(turn: Turn) -> None:
    """Note the collectives of a step.

    Raises RuntimeError if those of a way of ours that communicates carry no gradients.
    """
    with CollectiveLog() as log:
        turn.step.run()
    # Without the byte per parameter that says whether it has a gradient.
    turn.result.collectives = [call for call in log.calls if call.dtype.is_floating_point]
    carries = any("reduce" in call.name for call in turn.result.collectives)
    if turn.way.communicates and not turn.way.is_own and not carries:
        raise RuntimeError("no gradients of a step were logged: the log does not reach the thread that sends them")


def note_loss(turn: Turn) -> None:
    """Note the mean loss of the ranks in one more step."""
    losses = turn.step.run()
    dist.all_reduce(losses)
    turn.result.loss = losses.item() / turn.context.world_size


def compare_weights(turn: Turn) -> None:
    """Compare the weights with those of the first way that communicates, and between ranks."""
    turn.result.differences = turn.comparison.differences(turn.weights(turn.step), turn.context.device)


def compare_if_communicates(turn: Turn) -> None:
    """Compare the weights of a way whose ranks should have the same."""
    if turn.way.communicates:
        compare_weights(turn)
