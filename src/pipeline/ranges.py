"""Named ranges of the code under measurement, for whichever profiler listens; free when none does.

What is measured marks its phases with `span` and knows no profiler. An instrument chooses what a range
becomes:

    with listening(torch.cuda.nvtx.range):
        step.run()
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

RangeFactory = Callable[[str], AbstractContextManager]

_SILENT = nullcontext()
_factory: RangeFactory | None = None


def span(name: str) -> AbstractContextManager:
    """Open the range `name` with the listener, or the shared no-op where nothing listens."""
    # Compiled code has no ranges: a fused kernel has no phases. Asked first, so that the compiler does not
    # make the compiled code depend on who listens, and a listener that comes later does not recompile it.
    if torch.compiler.is_compiling() or _factory is None:
        return _SILENT
    return _factory(name)


def listener() -> RangeFactory | None:
    """Return what every range is sent to now, for another listener to pass ranges on to; None where nothing listens."""
    return _factory


@contextmanager
def listening(factory: RangeFactory) -> Iterator[None]:
    """Send every range to `factory(name)` inside this context; restore the former listener after it."""
    global _factory
    former, _factory = _factory, factory
    try:
        yield
    finally:
        _factory = former
