import gc
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
import torch

from pipeline.instruments.machine.power import Power
from pipeline.instruments.sampling import sustained
from pipeline.instruments.sampling.interleaving import Work
from pipeline.instruments.sampling.step_timing import recorded_event
from pipeline.instruments.sampling.sustained import BLOCKS_AHEAD, hold


@dataclass
class Machine:
    """A host that takes its time to queue calls, and a GPU that runs them one after the other at a speed of its own."""

    enqueue_ms: float
    call_ms: object  # of the GPU, by the moment at which it begins the call
    host_ms: float = 0.0
    gpu_ms: float = 0.0
    most_queued_ms: float = 0.0
    calls: int = 0

    def call(self, _nothing=None):
        self.calls += 1
        self.host_ms += self.enqueue_ms
        begin_ms = max(self.gpu_ms, self.host_ms)
        self.gpu_ms = begin_ms + self.call_ms(begin_ms)
        self.most_queued_ms = max(self.most_queued_ms, self.gpu_ms - self.host_ms)

    def record(self):
        return Moment(self, max(self.gpu_ms, self.host_ms))


@dataclass
class Moment:
    machine: Machine
    at_ms: float

    def query(self):
        return self.at_ms <= self.machine.host_ms

    def synchronize(self):
        self.machine.host_ms = max(self.machine.host_ms, self.at_ms)

    def elapsed_time(self, end):
        assert end.query(), "a CUDA event gives no time before it is reached"
        return end.at_ms - self.at_ms


def held(machine, duration_s=1.0, call_ms=1.0, **of_work):
    return hold(Work(machine.call, **of_work), call_ms, duration_s, machine.record)


def test_a_gpu_that_slows_down_gives_the_time_that_it_holds():
    machine = Machine(0.1, lambda at_ms: 1.0 if at_ms < 490 else 1.25)
    assert held(machine).median_ms == pytest.approx(1.25)


def test_it_lasts_as_long_as_asked_and_the_host_is_a_few_blocks_ahead():
    machine = Machine(0.1, lambda _at_ms: 1.0)
    held(machine, duration_s=0.5)
    assert 500 <= machine.gpu_ms <= 500 + (BLOCKS_AHEAD + 1) * sustained.BLOCK_MS
    assert machine.most_queued_ms <= BLOCKS_AHEAD * sustained.BLOCK_MS


@pytest.mark.parametrize(("enqueue_ms", "is_known"), [(0.9, True), (1.1, False)])
def test_a_gpu_that_waits_for_its_host_gives_no_time(enqueue_ms, is_known):
    assert (held(Machine(enqueue_ms, lambda _at_ms: 1.0)) is not None) == is_known


def test_a_host_that_stops_now_and_then_does_not_count():
    machine = Machine(0.1, lambda _at_ms: 1.0)

    def prepare():
        machine.host_ms += 100 * (machine.calls % 300 == 299)

    assert held(machine, duration_s=2.0, prepare=prepare).median_ms == pytest.approx(1.0)


def test_a_call_longer_than_all_the_time_is_run_a_few_times():
    machine = Machine(0.1, lambda _at_ms: 3000.0)
    assert held(machine, call_ms=3000.0).median_ms == pytest.approx(3000.0)
    assert machine.calls <= BLOCKS_AHEAD + 1


def test_preparing_a_call_is_part_of_it_within_its_context_and_no_garbage_is_collected():
    machine, log = Machine(0.1, lambda _at_ms: 1.0), []

    @contextmanager
    def within():
        log.append("enter")
        yield
        log.append("exit")

    held(machine, duration_s=0.1, prepare=lambda: log.append(gc.isenabled()), within=within)
    assert (log[0], log[-1], {*log[1:-1]}) == ("enter", "exit", {False})
    assert len(log) - 2 == machine.calls
    assert gc.isenabled()


def test_the_clock_is_that_of_the_second_half(monkeypatch):
    machine, polled_ms = Machine(0.1, lambda _at_ms: 1.0), []

    class Watch:
        def __init__(self):
            self.poll()

        def poll(self):
            polled_ms.append(machine.host_ms)

        def over(self, _steps):
            return Power(sm_clock_mhz=1500.0)

    monkeypatch.setattr(sustained, "PowerWatch", Watch)
    assert held(machine).sm_clock_mhz == 1500.0
    assert min(polled_ms) >= 500
    assert len(polled_ms) > 10


@pytest.mark.gpu
def test_a_gpu_holds_about_the_time_that_events_around_many_calls_give():
    x = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    work = Work(lambda _: x @ x)
    work.call(None)
    found = hold(work, 0.2, 0.5)
    begin = recorded_event()
    for _ in range(100):
        work.call(None)
    end = recorded_event()
    end.synchronize()
    assert found.median_ms == pytest.approx(begin.elapsed_time(end) / 100, rel=0.3)
