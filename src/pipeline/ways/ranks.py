"""Run a function on the ranks of a cell; ways that do not fit into memory together run one by one."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from pipeline.errors import Skipped
from pipeline.instruments.machine.identity import gpu_count
from pipeline.instruments.memory.out_of_memory import is_out_of_memory
from pipeline.parallel.processes.starting import run_ranks

Thing = TypeVar("Thing")
Result = TypeVar("Result")
Row = dict[str, Any]
# Exceptions that may be outcomes.
ENDS = (Skipped, RuntimeError, MemoryError)


def ranks_on() -> tuple[str, str]:
    """Return the backend of the process group and the type of its devices."""
    return ("nccl", "cuda") if gpu_count() > 0 else ("gloo", "cpu")


def run_on_ranks(function: Callable[..., Result], cell: Any, settings: Any, *args: Any) -> Result:
    """Run `function(context, cell, settings, *args)` on the ranks of a cell; return rank 0's result.

    Raises as `run_ranks` does.
    """
    backend, device_type = ranks_on()
    return run_ranks(
        function,
        cell.world_size,
        backend=backend,
        device_type=device_type,
        timeout_s=settings.timeout_s,
        args=(cell, settings, *args),
    )[0]


def outcome(end: Exception) -> Row:
    """Return the columns of a row without values; re-raises an exception that is not an outcome."""
    if isinstance(end, Skipped):
        return {"status": "skipped", "reason": str(end)}
    if not is_out_of_memory(end):
        raise end
    return {"status": "oom", "reason": str(end).splitlines()[0]}


def together_or_apart(
    measure: Callable[[Sequence[Thing]], Sequence[Result]], things: Sequence[Thing]
) -> list[Result | Row]:
    """Measure things together; if memory runs out, each by itself, so that those that fit have a result.

    Ranks that work together cannot continue once one of them is out of memory, so all of them are restarted.
    A thing that does not fit by itself gets its outcome instead of a result; other exceptions propagate.
    """
    try:
        return list(measure(things))
    except (RuntimeError, MemoryError) as error:
        failed = outcome(error)
    if len(things) == 1:
        return [failed]
    return [result for each in things for result in together_or_apart(measure, [each])]
