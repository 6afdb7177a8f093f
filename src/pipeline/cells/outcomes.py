"""Outcomes of a part of a cell: several things measured together, of which one may not fit into memory."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from pipeline.instruments.memory.out_of_memory import is_out_of_memory

Thing = TypeVar("Thing")
Result = TypeVar("Result")


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
