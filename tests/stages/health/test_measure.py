import os
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import pytest

from pipeline.errors import Skipped
from pipeline.instruments.machine.gpus import visible_devices_variable, visible_gpus
from pipeline.instruments.sampling.stopwatch import Stopwatch
from pipeline.stages.health import measure
from pipeline.stages.health.cell import Cell, Settings
from pipeline.stages.health.load import keep_at_work

from ...records import rows_read
from .conftest import slow

SHORT = Settings(alone_s=0.5, together_s=4.0, link_s=0.1)
BUSY = """
import torch
a = torch.randn(8192, 8192, device="cuda", dtype=torch.float16)
a @ a
torch.cuda.synchronize()
print("ready", flush=True)
while True:
    for _ in range(50):
        a @ a
    torch.cuda.synchronize()
"""


@contextmanager
def busy(gpu):
    environment = {**os.environ, visible_devices_variable(): gpu.id}
    command = [sys.executable, "-c", BUSY]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout.readline().strip() == "ready"
            yield
        finally:
            other.kill()


def test_all_work_until_each_has_enough_samples_but_not_for_ever(monkeypatch):
    def counting(times_per_turn):
        """Return a fake GPU that gains this many samples in each turn."""
        fake = SimpleNamespace(samples_ms=[], finished=False)
        fake.go_on = lambda: fake.samples_ms.extend([1.0] * times_per_turn)
        fake.finish = lambda: setattr(fake, "finished", True)
        return fake

    fast, slower, stuck = counting(5), counting(1), counting(0)
    keep_at_work([fast, slower], 0.0, least_samples=20)
    monkeypatch.setattr("pipeline.stages.health.load.WARM_S", 0.01)
    keep_at_work([stuck], 0.0)
    assert (len(slower.samples_ms), len(fast.samples_ms)) == (20, 100)
    assert all(each.finished for each in (fast, slower, stuck))


def test_a_cell_takes_all_gpus_or_its_own_number_and_is_skipped_without_any(monkeypatch):
    monkeypatch.setattr(measure, "visible_gpus", list)
    with pytest.raises(Skipped, match=r"^needs an NVIDIA GPU, none present$"):
        measure.measure(Cell(), SHORT, Stopwatch())
    monkeypatch.setattr("pipeline.stages.health.cell.visible_gpus", lambda: [object()] * 3)
    assert (Cell().gpus, Cell("2").gpus) == (3, 2)


@pytest.mark.gpu(count=2)
def test_two_sound_gpus_and_their_links_are_measured_and_none_is_flagged():
    rows = rows_read(measure.measure, Cell("2"), SHORT)
    assert {row["status"] for row in rows} <= {"ok", "unstable"}
    assert slow(rows) == set()
    assert len([row for row in rows if row["kind"] == "rate"]) == 2 * 2 * 2
    assert len([row for row in rows if row["kind"] == "link"]) == 2
    for row in (row for row in rows if row["kind"] == "gpu"):
        assert "in_use" not in row["findings"]
        assert len(row["sm_clocks_mhz"]) >= 4
        assert row["max_temperature_c"] > 0


@pytest.mark.gpu(count=2)
@pytest.mark.parametrize("place", [0, 1])
def test_only_the_gpu_that_another_process_uses_is_flagged(place):
    with busy(visible_gpus()[place]):
        rows = rows_read(measure.measure, Cell("2"), SHORT)
    states = [row for row in rows if row["kind"] == "gpu"]
    assert ["in_use" in row["findings"] for row in states] == [place == 0, place == 1]
    rates = {(index, peer) for index, peer in slow(rows) if peer is None}
    assert rates == {(states[place]["gpu_index"], None)}


@pytest.mark.gpu(count=2)
def test_work_that_does_not_fit_is_out_of_memory_and_the_rest_is_measured():
    most = replace(SHORT, memory_bytes=2**40, together_s=1.0)
    rows = rows_read(measure.measure, Cell("2"), most)
    outcomes = {(row["work"], row["status"] in ("ok", "unstable")) for row in rows if row["kind"] == "rate"}
    assert outcomes == {("matmul", True), ("copy", False)}
