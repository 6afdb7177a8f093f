import gc
import time

import pytest
import torch

from pipeline.instruments.sampling import bursts
from pipeline.instruments.sampling.bursts import time_burst_ms

CPU = torch.device("cpu")


def test_the_first_call_in_which_processes_wait_is_not_timed(clock):
    made = iter([2.0, 0.125, 0.25, 0.375])
    assert time_burst_ms(lambda: clock.sleep(next(made)), CPU, calls=3) == 250.0
    assert list(made) == []


def test_a_burst_starts_on_an_idle_device_with_the_garbage_collector_off(monkeypatch):
    log = []
    monkeypatch.setattr(bursts, "synchronize", lambda _device: log.append("wait"))
    time_burst_ms(lambda: log.append(gc.isenabled()), CPU, calls=2)
    assert log == ["wait"] + [False] * 3
    assert gc.isenabled()


@pytest.mark.gpu
def test_a_slow_host_does_not_count_on_a_gpu():
    small = torch.ones(1024, device="cuda")

    def call():
        begun = time.perf_counter()
        while time.perf_counter() - begun < 50e-6:
            pass  # a slow host; the kernel itself takes a few microseconds
        small.mul_(1)

    call()  # the first call loads the kernel, and the host waits for that
    assert time_burst_ms(call, torch.device("cuda"), calls=10) < 0.03
