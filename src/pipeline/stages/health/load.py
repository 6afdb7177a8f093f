"""Keep GPUs busy and time each by its own events: products, copies within its memory, copies to another GPU."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

# A burst must be much longer than a launch and much shorter than the stretches of time that are compared.
BURST_MS = 20.0
IN_FLIGHT = 6  # enough to read NVML meanwhile
LEAST_SAMPLES = 20
WARM_S = 0.3
# How much longer to wait for the samples of a GPU that another process keeps busy.
MOST_TIMES_LONGER = 10
IDLE_S = 0.0005

Call = Callable[[], object]


class Timed:
    """A call that a GPU repeats in bursts; `samples_ms` has the time per call of each finished burst."""

    def __init__(self, device: torch.device, call: Call, warm_s: float = WARM_S) -> None:
        self.device, self._call = device, call
        self.samples_ms: list[float] = []
        self._flying: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque()
        self.calls = 1
        keep_at_work([self], warm_s, least_samples=3)
        self.calls = max(1, round(BURST_MS / min(self.samples_ms)))
        self.samples_ms.clear()

    def go_on(self) -> None:
        """Record the time of each finished burst, and queue more so that the GPU does not run out of work."""
        while self._flying and self._flying[0][1].query():
            self._take()
        while len(self._flying) < IN_FLIGHT:
            self._queue()

    def finish(self) -> None:
        """Wait for the queued bursts and record their times."""
        while self._flying:
            self._take()

    def _queue(self) -> None:
        with torch.cuda.device(self.device):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for _ in range(self.calls):
                self._call()
            end.record()
        self._flying.append((begin, end))

    def _take(self) -> None:
        begin, end = self._flying.popleft()
        end.synchronize()
        self.samples_ms.append(begin.elapsed_time(end) / self.calls)


def keep_at_work(
    timed: Sequence[Timed], seconds: float, poll: Call = lambda: None, least_samples: int = LEAST_SAMPLES
) -> None:
    """Have all GPUs repeat their calls for `seconds` and until each has enough samples; call `poll` meanwhile."""
    started = time.perf_counter()
    while True:
        passed_s = time.perf_counter() - started
        enough = all(len(each.samples_ms) >= least_samples for each in timed)
        if passed_s >= seconds and (enough or passed_s >= MOST_TIMES_LONGER * max(seconds, WARM_S)):
            break
        for each in timed:
            each.go_on()
        poll()
        time.sleep(IDLE_S)
    for each in timed:
        each.finish()


class Products:
    """A product of two square fp16 matrices of the same random numbers on every GPU; zeros would draw less power."""

    def __init__(self, device: torch.device, side: int) -> None:
        seeded = torch.Generator(device).manual_seed(0)
        left, right = torch.randn(2, side, side, generator=seeded, device=device).to(torch.float16)
        self._result = torch.empty_like(left)
        self.call: Call = partial(torch.mm, left, right, out=self._result)
        self.call()
        self._first = self._result.clone()

    def is_wrong(self) -> bool:
        """Tell whether the last product differs from the first in any bit."""
        return not torch.equal(self._result, self._first)


class Copies:
    """A copy of a tensor within a GPU's memory, or to another GPU."""

    def __init__(self, source: Tensor, target: Tensor) -> None:
        self._source, self._target = source, target
        self.call: Call = partial(target.copy_, source, non_blocking=True)

    def is_wrong(self) -> bool:
        """Tell whether what has arrived differs from what was sent."""
        return not torch.equal(self._source, self._target.to(self._source.device))


def numbers(device: torch.device, size_bytes: int) -> Tensor:
    """Return a tensor of this many bytes whose values differ."""
    return torch.arange(size_bytes // 4, dtype=torch.int32, device=device)
