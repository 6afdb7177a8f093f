from types import SimpleNamespace

import pynvml
import pytest
import torch

from pipeline.instruments.machine import gpu_state, power
from pipeline.instruments.machine.gpus import Gpu
from pipeline.instruments.machine.power import Power, PowerWatch, pooled_power, power_of_ranks
from pipeline.instruments.sampling.step_timing import StopRule, time_phases

CAPPED, BRAKE = pynvml.nvmlClocksEventReasonSwPowerCap, pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown


class Machine:
    """Fake GPUs that draw the given watts each, at a clock and with throttle reasons that a test sets."""

    def __init__(self, watts):
        self.now_s, self.watts, self.clock_mhz, self.reasons = 5.0, watts, 1980, 0
        self.supported, self.readings = True, 0
        self.capped_s = None  # None for an older driver, which does not count it

    def perf_counter(self):
        return self.now_s

    def ask(self, query, handle, *_arguments):
        if query is pynvml.nvmlDeviceGetTotalEnergyConsumption:
            return int(1e3 * self.watts[handle] * self.now_s) if self.supported else None
        if query is pynvml.nvmlDeviceGetClockInfo:
            self.readings += 1
            return self.clock_mhz - handle if self.supported else None
        if query is pynvml.nvmlDeviceGetFieldValues:
            if self.capped_s is None:
                return [SimpleNamespace(nvmlReturn=pynvml.NVML_ERROR_NOT_SUPPORTED)]
            return [SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(ullVal=int(1e9 * self.capped_s)))]
        return self.reasons if self.supported else None


@pytest.fixture
def machine(monkeypatch):
    def watched(*watts, rank=None, **states):
        """Return a machine, and a function that lets seconds pass, polls, and returns the watch."""
        found = Machine(watts)
        vars(found).update(states)
        gpus = [Gpu(f"GPU-{number}", number, "a GPU", None, handle=number) for number in range(len(watts))]
        monkeypatch.setattr(power, "visible_gpus", lambda: gpus)
        monkeypatch.setattr(power, "perf_counter", found.perf_counter)
        for module in (power, gpu_state):
            monkeypatch.setattr(module, "ask", found.ask)
        watch = PowerWatch(rank)

        def go_on(seconds):
            found.now_s += seconds
            watch.poll()
            return watch

        return found, go_on

    return watched


@pytest.mark.parametrize(("rank", "seconds", "energy_j"), [(None, 2.0, 180.0), (1, 2.0, 60.0), (None, 0.9, None)])
def test_energy_is_per_step_over_all_gpus_or_a_ranks_own_if_steps_last_a_second(machine, rank, seconds, energy_j):
    _, go_on = machine(600, 300, rank=rank)
    assert go_on(seconds).over(steps=10).energy_j == (energy_j and pytest.approx(energy_j))


def test_the_clock_is_the_mean_of_the_slowest_gpu(machine):
    found, go_on = machine(600, 600)
    for found.clock_mhz in (1900, 1500):
        watch = go_on(1.0)
    found.clock_mhz = 1400
    assert watch.over(steps=2).sm_clock_mhz == pytest.approx(1600 - 1)


@pytest.mark.parametrize(
    ("reasons", "capped", "slowdowns"),
    [((CAPPED, BRAKE, 0), True, ("hw_power_brake",)), ((pynvml.nvmlClocksEventReasonGpuIdle,), False, ())],
)
def test_throttling_that_ended_is_seen_and_a_power_cap_is_not_a_slowdown(machine, reasons, capped, slowdowns):
    found, go_on = machine(600)
    for found.reasons in reasons:
        watch = go_on(1.0)
    seen = watch.over(steps=3)
    assert (seen.power_capped, seen.slowdowns) == (capped, slowdowns)


@pytest.mark.parametrize(("capped_s", "capped"), [(0.0, False), (0.01, False), (0.05, True)])
def test_the_drivers_count_of_capped_time_overrides_polled_throttle_reasons(machine, capped_s, capped):
    found, go_on = machine(600, capped_s=100.0, reasons=CAPPED)
    found.capped_s += capped_s
    assert go_on(2.0).over(steps=1).power_capped is capped


def test_short_steps_are_not_slowed_by_a_reading_each(machine):
    found, go_on = machine(600)
    for _ in range(100):
        go_on(0.002)
    assert found.readings <= 10


@pytest.mark.parametrize("watts", [(600,), ()])
def test_power_is_empty_without_gpus_or_answers(machine, watts):
    _, go_on = machine(*watts, supported=False)
    assert go_on(2.0).over(steps=2) == Power()


def test_stretches_are_averaged_and_ranks_added_up_at_the_slowest_clock():
    first, second = Power(10.0, 1800.0, False, ("hw_slowdown",)), Power(12.0, 1900.0, True, ())
    assert pooled_power([first, second]) == Power(11.0, 1850.0, True, ("hw_slowdown",))
    assert pooled_power([first, Power()]) == Power(None, None, False, ("hw_slowdown",))
    assert power_of_ranks([first, second]) == Power(22.0, 1800.0, True, ("hw_slowdown",))
    assert power_of_ranks([first, Power()]) == Power(None, 1800.0, False, ("hw_slowdown",))
    assert power_of_ranks([Power(), Power()]) == Power()


@pytest.mark.gpu
def test_matmuls_draw_more_than_an_idle_gpu_and_no_more_than_the_limit():
    device, x = torch.device("cuda"), torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)

    def products():
        for _ in range(20):
            x @ x

    rule = StopRule(min_samples=10, max_samples=1000, rel_error=0.0, budget_s=2.0)
    sampling = time_phases({"products": products}, device, 3, rule)
    seconds = sum(sampling.timings["products"].host_ms) / 1e3
    (limit_mw,) = [pynvml.nvmlDeviceGetEnforcedPowerLimit(gpu.handle) for gpu in power.visible_gpus()][:1]
    watts = sampling.power.energy_j * len(sampling.timings["products"].host_ms) / seconds
    assert 200 < watts < 1.1 * limit_mw / 1e3
    assert 500 < sampling.power.sm_clock_mhz < 3000
    assert sampling.power.power_capped is not None
