"""Try a call alone before it is timed in turn with others: about how long it takes and how much memory it needs."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch

from pipeline.errors import Skipped
from pipeline.instruments.memory.out_of_memory import is_out_of_memory
from pipeline.instruments.sampling.interleaving import Work
from pipeline.instruments.sampling.step_timing import time_call_ms
from pipeline.peers import PEERS


@dataclass(frozen=True)
class Called:
    """One call: its milliseconds by the host clock, its seconds with preparation, and its result."""

    call_ms: float
    sample_s: float
    result: Any


def timed_call(work: Work, device: torch.device) -> Called:
    """Run one sample of the work."""
    kept: list[Any] = []
    started = perf_counter()
    with work.within():
        argument = work.prepare()
        call_ms = time_call_ms(lambda: kept.append(work.call(argument)), device)
    return Called(call_ms, perf_counter() - started, kept[0])


def measured_call(work: Work, device: torch.device) -> tuple[Called, dict[str, int]]:
    """Run one sample; on a GPU also return as `extra_bytes` its peak above the memory allocated before."""
    if device.type != "cuda":
        return timed_call(work, device), {}
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    called = timed_call(work, device)
    return called, {"extra_bytes": torch.cuda.max_memory_allocated(device) - before}


def peer_errors_as_skipped(name: str) -> AbstractContextManager:
    """Turn a peer's errors into Skipped, except out-of-memory errors and those that end all work on the GPU.

    Peers refuse problems with assertions and compiler errors, which cannot be told from their own bugs.
    """
    return errors_as_skipped(PEERS[name]) if name in PEERS else nullcontext()


@contextmanager
def errors_as_skipped(what: str) -> Iterator[None]:
    """Turn errors into Skipped, with `what` raised them, except those that `peer_errors_as_skipped` lets pass."""
    try:
        yield
    except Exception as error:
        if isinstance(error, Skipped | torch.AcceleratorError) or is_out_of_memory(error):
            raise
        said = str(error).partition("\n")[0]
        raise Skipped(f"{what} raises {type(error).__name__}: {said}") from None
