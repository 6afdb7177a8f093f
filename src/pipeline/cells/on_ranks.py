"""Measure several ways to train in the same ranks, by turns; where one of them does not fit into memory, each alone."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from pipeline.instruments.machine.identity import gpu_count
from pipeline.instruments.memory.out_of_memory import is_out_of_memory
from pipeline.parallel.processes.starting import run_ranks

Thing = TypeVar("Thing")
Result = TypeVar("Result")


def ranks_on() -> tuple[str, str]:
    """Return the backend of the process group and the type of its devices."""
    return ("nccl", "cuda") if gpu_count() > 0 else ("gloo", "cpu")


def measure_on_ranks(
    function: Callable[..., dict[Thing, Any]], cell: Any, settings: Any, things: Sequence[Thing], *args: Any
) -> dict[Thing, Any]:
    """Run `function(context, cell, settings, things, *args)` on the ranks of a cell; return rank 0's results by thing.

    A MemoryError stands for what does not fit. Raises as `run_ranks` does.
    """
    backend, device_type = ranks_on()

    def measure(things: Sequence[Thing]) -> dict[Thing, Any]:
        return run_ranks(
            function,
            cell.world_size,
            backend=backend,
            device_type=device_type,
            timeout_s=settings.timeout_s,
            args=(cell, settings, things, *args),
        )[0]

    return together_or_apart(measure, things)


def together_or_apart(
    measure: Callable[[Sequence[Thing]], dict[Thing, Result]], things: Sequence[Thing]
) -> dict[Thing, Result | MemoryError]:
    """Measure things together; where memory runs out, each by itself, so that those that fit have a result.

    Ranks that work together cannot go on when one of them has no memory, so that all of them end, and begin anew.
    Returns a MemoryError with its reason for what does not fit by itself; any other exception passes through.
    """
    try:
        return dict(measure(things))
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        if len(things) == 1:
            return {things[0]: MemoryError(str(error).splitlines()[0])}
    return {thing: result for each in things for thing, result in together_or_apart(measure, [each]).items()}
