"""Named ranges in the measured code, for whichever profiler listens; they cost nothing when none does.

Measured code marks its phases with `span` and knows no profiler. An instrument decides what a range becomes:

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
    """Open the range `name` with the listener, or a shared no-op if nothing listens."""
    # Compiled code has no ranges, because a fused kernel has no phases. Checked first: otherwise the compiled code
    # would depend on the listener, and a new listener would recompile it.
    if torch.compiler.is_compiling() or _factory is None:
        return _SILENT
    return _factory(name)


def listener() -> RangeFactory | None:
    """Return the current listener, which a new one may pass ranges on to; None if nothing listens."""
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
