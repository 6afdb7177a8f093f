import pytest

from pipeline.instruments.sampling import bursts, interleaving, kernel_timing, step_timing


class Clock:
    """A fake clock that only `sleep` advances."""

    now_s = 0.0

    def perf_counter(self):
        return self.now_s

    def sleep(self, seconds):
        self.now_s += seconds


@pytest.fixture
def clock(monkeypatch):
    """Make the instruments read a fake clock."""
    found = Clock()
    for module in (bursts, interleaving, kernel_timing, step_timing):
        monkeypatch.setattr(module, "perf_counter", found.perf_counter)
    return found
