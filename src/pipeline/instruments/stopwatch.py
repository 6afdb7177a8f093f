"""Where a cell's wall time goes: start-up of the process, set-up, measuring."""

import contextlib
import time
from collections.abc import Iterator


class Stopwatch:
    """Add up the seconds spent measuring; what is left of a cell's time is set-up."""

    def __init__(self) -> None:
        self.started = time.perf_counter()
        self.measuring_s = 0.0

    @contextlib.contextmanager
    def measuring(self) -> Iterator[None]:
        """Count the time inside the block as measuring, also when it ends in an error."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.measuring_s += time.perf_counter() - begin

    def seconds(self) -> dict[str, float]:
        """Return the seconds since the start, split into `set_up` and `measuring`."""
        total_s = time.perf_counter() - self.started
        return {"set_up": total_s - self.measuring_s, "measuring": self.measuring_s}
