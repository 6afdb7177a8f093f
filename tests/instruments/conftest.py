import pytest

from pipeline.instruments.sampling import bursts, interleaving, kernel_timing, step_timing


class Clock:
    """A clock on which nothing takes time but what sleeps on it, whatever else the machine does."""

    now_s = 0.0

    def perf_counter(self):
        return self.now_s

    def sleep(self, seconds):
        self.now_s += seconds


@pytest.fixture
def clock(monkeypatch):
    """Have the instruments read such a clock."""
    found = Clock()
    for module in (bursts, interleaving, kernel_timing, step_timing):
        monkeypatch.setattr(module, "perf_counter", found.perf_counter)
    return found
