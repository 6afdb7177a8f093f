import gc
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from pipeline.instruments.machine.power import Power
from pipeline.instruments.sampling import sustained
from pipeline.instruments.sampling.interleaving import Work
from pipeline.instruments.sampling.step_timing import recorded_event
from pipeline.instruments.sampling.sustained import BLOCKS_AHEAD, hold

from .simulated import Gpu


def held(gpu, call_ms=1.0, enqueue_ms=0.1, duration_s=1.0, about_ms=1.0, **of_work):
    """Hold a call; call_ms: its GPU time, or a function of the moment at which it begins."""

    def call(_nothing=None):
        gpu.host_ms += enqueue_ms
        gpu.queue("call", call_ms(gpu.begins_ms) if callable(call_ms) else call_ms)

    return hold(Work(call, **of_work), about_ms, duration_s, gpu.mark)


def calls(gpu):
    return sum(what == "call" for what, _ in gpu.log)


def test_a_gpu_that_slows_down_gives_the_time_that_it_sustains():
    assert held(Gpu(), lambda at_ms: 1.0 if at_ms < 490 else 1.25).median_ms == pytest.approx(1.25)


def test_a_run_lasts_as_long_as_asked_with_the_host_a_few_blocks_ahead():
    gpu = Gpu()
    held(gpu, duration_s=0.5)
    assert 500 <= gpu.done_ms <= 500 + (BLOCKS_AHEAD + 1) * sustained.BLOCK_MS
    assert gpu.most_queued_ms <= BLOCKS_AHEAD * sustained.BLOCK_MS


@pytest.mark.parametrize(("enqueue_ms", "is_known"), [(0.9, True), (1.1, False)])
def test_a_gpu_that_waits_for_its_host_gives_no_time(enqueue_ms, is_known):
    assert (held(Gpu(), enqueue_ms=enqueue_ms) is not None) == is_known


def test_occasional_stalls_of_the_host_do_not_count():
    gpu = Gpu()

    def prepare():
        gpu.host_ms += 100 * (calls(gpu) % 300 == 299)

    assert held(gpu, duration_s=2.0, prepare=prepare).median_ms == pytest.approx(1.0)


def test_a_call_longer_than_the_whole_duration_runs_a_few_times():
    gpu = Gpu()
    assert held(gpu, 3000.0, about_ms=3000.0).median_ms == pytest.approx(3000.0)
    assert calls(gpu) <= BLOCKS_AHEAD + 1


def test_calls_are_prepared_inside_the_context_with_the_garbage_collector_off():
    gpu, log = Gpu(), []

    @contextmanager
    def within():
        log.append("enter")
        yield
        log.append("exit")

    held(gpu, duration_s=0.1, prepare=lambda: log.append(gc.isenabled()), within=within)
    assert (log[0], log[-1], {*log[1:-1]}) == ("enter", "exit", {False})
    assert len(log) - 2 == calls(gpu)
    assert gc.isenabled()


def test_the_sm_clock_is_that_of_the_second_half(monkeypatch):
    gpu, polled_ms = Gpu(), []

    def poll():
        polled_ms.append(gpu.host_ms)
        return SimpleNamespace(poll=poll, over=lambda _steps: Power(sm_clock_mhz=1500.0))

    monkeypatch.setattr(sustained, "PowerWatch", poll)
    assert held(gpu).sm_clock_mhz == 1500.0
    assert min(polled_ms) >= 500
    assert len(polled_ms) > 10


@pytest.mark.gpu
def test_the_sustained_time_agrees_with_events_around_many_calls():
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
