"""Split a cell's wall time into set-up and measuring, and count the CPU time lost to others while measuring."""

import contextlib
from collections import Counter
from collections.abc import Iterator
from time import perf_counter

from pipeline.instruments.machine.cpu_use import lost_cpu_s


class Stopwatch:
    """Add up the seconds spent measuring; the rest of a cell's time is set-up."""

    def __init__(self) -> None:
        self.started = perf_counter()
        self.measuring_s = 0.0
        self._lost_s: Counter[str] = Counter()

    @contextlib.contextmanager
    def measuring(self) -> Iterator[None]:
        """Count the time inside the block as measuring, even if it ends in an error."""
        begin, lost_before_s = perf_counter(), lost_cpu_s()
        try:
            yield
        finally:
            self.measuring_s += perf_counter() - begin
            self._lost_s.update({name: lost_s - lost_before_s[name] for name, lost_s in lost_cpu_s().items()})

    def seconds(self) -> dict[str, float]:
        """Return the seconds since the start as `set_up` and `measuring`, and the CPU seconds lost while measuring."""
        total_s = perf_counter() - self.started
        return {"set_up": total_s - self.measuring_s, "measuring": self.measuring_s, **self._lost_s}
