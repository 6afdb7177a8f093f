import itertools

import pytest
import torch

from pipeline.instruments.sampling import kernel_timing, step_timing
from pipeline.instruments.sampling.interleaving import Work, interleave
from pipeline.instruments.sampling.kernel_timing import KernelSampler, host_sampler, kernel_sampler, latency_sampler
from pipeline.instruments.sampling.step_timing import StopRule

from .simulated import Gpu

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
FIVE = StopRule(min_samples=5, max_samples=5, rel_error=0.0, budget_s=60)


@pytest.fixture
def gpu(monkeypatch):
    found = Gpu()
    monkeypatch.setattr(kernel_timing, "perf_counter", found.perf_counter)
    return found


def launches(gpu, count, kernel_ms, launch_ms):
    """Return a call that launches `count` kernels, each of which costs the host `launch_ms`."""

    def call(_argument):
        for _ in range(count):
            gpu.host_ms += launch_ms
            gpu.queue("kernel", kernel_ms)

    return Work(call)


def test_launch_gaps_show_at_first_and_are_then_hidden_by_a_busy_stream(gpu):
    sampler, work = KernelSampler(gpu), launches(gpu, count=10, kernel_ms=0.001, launch_ms=0.1)
    cold, warm = sampler(work), sampler(work)
    assert (cold.exposed, warm.exposed) == (True, False)
    assert cold.times_ms["device"] > 0.5
    assert warm.times_ms["device"] == pytest.approx(10 * 0.001)
    busy_ms, least_ms = [duration for what, duration in gpu.log if what == "busy"], kernel_timing.LEAST_BUSY_MS
    assert busy_ms == [least_ms, pytest.approx(kernel_timing.BUSY_OVER_ENQUEUE * 10 * 0.1 + least_ms)]


def test_a_call_that_queues_too_slowly_stays_exposed_and_is_counted(gpu):
    works = {"slow": launches(gpu, count=10, kernel_ms=0.001, launch_ms=kernel_timing.MOST_BUSY_MS)}
    taken = interleave(works, KernelSampler(gpu), {"slow": FIVE}, warmup=1).taken["slow"]
    assert (taken.exposed, len(taken.times_ms["device"])) == (5, 5)
    assert max(duration for what, duration in gpu.log if what == "busy") <= kernel_timing.MOST_BUSY_MS


def test_the_l2_flush_and_busy_kernel_come_after_preparation_and_before_the_first_event(gpu):
    work = Work(call=lambda _: gpu.queue("kernel", 1.0), prepare=lambda: gpu.queue("prepare", 5.0))
    sample = KernelSampler(gpu)(work)
    assert [what for what, _ in gpu.log] == ["prepare", "flush", "busy", "mark", "kernel", "mark"]
    assert sample.times_ms["device"] == 1.0


@pytest.fixture
def log(monkeypatch):
    """Return a list to which every reading of the clock and every wait for the device is appended.

    A lone call, which reads the clock three times, takes as long as the untimed calls before it must run.
    """
    lines = []
    now_s = itertools.count(0.0, kernel_timing.SETTLING_MS / 1e3 / 3)
    for module in (kernel_timing, step_timing):
        monkeypatch.setattr(module, "perf_counter", lambda: lines.append("clock") or next(now_s))
        monkeypatch.setattr(module, "synchronize", lambda _device: lines.append("wait"))
    return lines


def test_latency_is_that_of_a_lone_call_on_an_idle_device_after_calls_of_the_same_work(log):
    sample = latency_sampler(CPU)(Work(lambda _: log.append("call"), prepare=lambda: log.append("prepare")))
    lone_call = ["prepare", "wait", "clock", "call", "clock", "wait", "clock"]
    assert log == ["clock", "clock", *lone_call, "clock", *lone_call]
    between_ms = kernel_timing.SETTLING_MS / 3
    assert sample.times_ms == pytest.approx({"call": 2 * between_ms, "enqueue": between_ms})


@pytest.mark.parametrize("sampler", [host_sampler, latency_sampler])
def test_the_result_of_a_call_is_freed_while_no_clock_is_running(sampler, log):
    class Result:
        def __del__(self):
            log.append("freed")

    sampler(CPU)(Work(lambda _: Result()))
    assert log[-1] == "freed"
    assert " ".join(log).count("wait clock freed") == log.count("freed")


def sampled(work, sampler):
    """Return the samples that interleaving takes of one work, after warm-up."""
    rule = StopRule(min_samples=20, max_samples=20, rel_error=0.0, budget_s=60)
    return interleave({"w": work}, sampler, {"w": rule}, warmup=3).taken["w"]


@pytest.mark.gpu
def test_short_kernels_take_less_device_time_than_their_launches_take_the_host():
    a = torch.randn(64, 64, device=CUDA)
    work = Work(lambda _: [a.mul(2.0) for _ in range(50)])
    device_ms = sampled(work, kernel_sampler(CUDA))
    enqueue_ms = sampled(work, latency_sampler(CUDA)).times_ms["enqueue"]
    assert device_ms.exposed <= 2
    assert sorted(device_ms.times_ms["device"])[10] < sorted(enqueue_ms)[10]


@pytest.mark.gpu
def test_device_time_and_latency_agree_for_a_long_kernel():
    a = torch.randn(8192, 8192, device=CUDA)
    work = Work(lambda _: a @ a)
    device_ms = sampled(work, kernel_sampler(CUDA)).times_ms["device"]
    host_ms = sampled(work, latency_sampler(CUDA)).times_ms["call"]
    assert sorted(device_ms)[10] == pytest.approx(sorted(host_ms)[10], rel=0.05)


@pytest.mark.gpu
def test_a_flushed_cache_makes_a_small_copy_slower():
    size = torch.cuda.get_device_properties(CUDA).L2_cache_size // 4
    source, target = torch.randn(2, size // 4, device=CUDA)
    warm = Work(lambda _: target.copy_(source))

    class NoFlush(kernel_timing.CudaQueue):
        def flush_l2(self):
            target.copy_(source)

    cold_ms = sampled(warm, kernel_sampler(CUDA)).times_ms["device"]
    warm_ms = sampled(warm, KernelSampler(NoFlush(CUDA))).times_ms["device"]
    assert sorted(cold_ms)[10] > sorted(warm_ms)[10]


@pytest.mark.gpu
def test_the_memory_of_a_call_that_ran_out_is_free_for_the_next():
    half = torch.cuda.mem_get_info(CUDA)[0] // 2  # of what is free: other test processes keep some

    def too_much(_argument):
        return [torch.empty(half, dtype=torch.uint8, device=CUDA) for _ in range(3)]

    works = {"large": Work(too_much), "half": Work(lambda _: torch.empty(half, dtype=torch.uint8, device=CUDA))}
    found = interleave(works, kernel_sampler(CUDA), dict.fromkeys(works, FIVE), warmup=1)
    assert found.taken["large"].out_of_memory
    assert len(found.taken["half"].times_ms["device"]) == 5
