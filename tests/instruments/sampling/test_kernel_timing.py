import itertools
import time
from types import SimpleNamespace

import pytest
import torch

from pipeline.instruments.sampling import kernel_timing, step_timing
from pipeline.instruments.sampling.interleaving import Work, interleave
from pipeline.instruments.sampling.kernel_timing import KernelSampler, host_sampler, kernel_sampler, latency_sampler
from pipeline.instruments.sampling.step_timing import StopRule

CPU = torch.device("cpu")
FIVE = StopRule(min_samples=5, max_samples=5, rel_error=0.0, budget_s=60)


class FakeQueue:
    """A device and a host on one simulated clock: work runs in order, from the moment that it is queued."""

    def __init__(self, clock):
        self.clock, self.free_at, self.log = clock, 0.0, []

    def queue(self, what, duration_ms):
        self.log.append((what, duration_ms))
        self.free_at = max(self.free_at, self.clock.now_ms) + duration_ms
        return self.free_at

    def flush_l2(self):
        self.queue("flush", 0.02)

    def keep_busy(self, duration_ms):
        self.queue("busy", duration_ms)

    def mark(self):
        return FakeEvent(self, self.queue("mark", 0.0))

    def synchronize(self):
        self.clock.now_ms = max(self.clock.now_ms, self.free_at)


class FakeEvent:
    def __init__(self, queue, at_ms):
        self.queue, self.at_ms = queue, at_ms

    def query(self):
        return self.queue.clock.now_ms >= self.at_ms

    def elapsed_time(self, end):
        return end.at_ms - self.at_ms


class FakeClock:
    now_ms = 0.0

    def perf_counter(self):
        return self.now_ms / 1e3


@pytest.fixture
def queue(monkeypatch):
    clock = FakeClock()
    monkeypatch.setattr(kernel_timing, "perf_counter", clock.perf_counter)
    return FakeQueue(clock)


def launches(queue, count, kernel_ms, launch_ms):
    """Return a call of so many kernels, each of which costs the host a launch."""

    def call(_argument):
        for _ in range(count):
            queue.clock.now_ms += launch_ms
            queue.queue("kernel", kernel_ms)

    return Work(call)


def test_launch_gaps_are_seen_at_first_and_then_hidden_behind_a_busy_stream(queue):
    sampler, work = KernelSampler(queue), launches(queue, count=10, kernel_ms=0.001, launch_ms=0.1)
    cold, warm = sampler(work), sampler(work)
    assert cold.exposed
    assert cold.times_ms["device"] > 0.5
    assert not warm.exposed
    assert warm.times_ms["device"] == pytest.approx(10 * 0.001)


def test_the_stream_is_kept_busy_for_longer_than_queueing_takes(queue):
    sampler, work = KernelSampler(queue), launches(queue, count=10, kernel_ms=0.001, launch_ms=0.1)
    sampler(work)
    sampler(work)
    busy_ms = [duration for what, duration in queue.log if what == "busy"]
    least_ms = kernel_timing.LEAST_BUSY_MS
    assert busy_ms == [least_ms, pytest.approx(kernel_timing.BUSY_OVER_ENQUEUE * 10 * 0.1 + least_ms)]


def test_a_call_that_takes_the_host_too_long_to_queue_stays_exposed(queue):
    sampler = KernelSampler(queue)
    work = launches(queue, count=10, kernel_ms=0.001, launch_ms=kernel_timing.MOST_BUSY_MS)
    assert [sampler(work).exposed for _ in range(3)] == [True] * 3
    assert max(duration for what, duration in queue.log if what == "busy") <= kernel_timing.MOST_BUSY_MS


def test_cache_is_flushed_and_stream_held_after_preparation_and_before_the_first_mark(queue):
    work = Work(call=lambda _: queue.queue("kernel", 1.0), prepare=lambda: queue.queue("prepare", 5.0))
    sample = KernelSampler(queue)(work)
    assert [what for what, _ in queue.log] == ["prepare", "flush", "busy", "mark", "kernel", "mark"]
    assert sample.times_ms["device"] == 1.0


def test_exposed_samples_are_counted_and_kept(queue):
    works = {"slow to queue": launches(queue, count=1, kernel_ms=0.001, launch_ms=100.0)}
    found = interleave(works, KernelSampler(queue), {"slow to queue": FIVE}, warmup=1)
    taken = found.taken["slow to queue"]
    assert (taken.exposed, len(taken.times_ms["device"])) == (5, 5)


def test_a_cpu_is_timed_by_the_host_clock():
    found = interleave({"nap": Work(lambda _: time.sleep(0.005))}, kernel_sampler(CPU), {"nap": FIVE}, warmup=0)
    times_ms = found.taken["nap"].times_ms
    assert list(times_ms) == ["host"]
    assert min(times_ms["host"]) >= 5


def test_latency_counts_the_call_and_not_its_preparation(clock):
    work = Work(call=lambda _: clock.sleep(0.125), prepare=lambda: clock.sleep(0.25))
    assert latency_sampler(CPU)(work).times_ms == {"enqueue": 125.0, "call": 125.0}


@pytest.fixture
def log(monkeypatch):
    """Make every reading of the clock and every wait for the device a line of a list, and give that.

    A lone call, which reads the clock three times, is as long as calls of the same go before.
    """
    lines = []
    now_s = itertools.count(0.0, kernel_timing.SETTLING_MS / 1e3 / 3)
    for module in (kernel_timing, step_timing):
        monkeypatch.setattr(module, "perf_counter", lambda: lines.append("clock") or next(now_s))
        monkeypatch.setattr(module, "synchronize", lambda _device: lines.append("wait"))
    return lines


def test_latency_is_that_of_a_device_with_nothing_else_to_do_after_calls_of_the_same(log):
    latency_sampler(CPU)(Work(lambda _: log.append("call"), prepare=lambda: log.append("prepare")))
    lone_call = ["prepare", "wait", "clock", "call", "clock", "wait", "clock"]
    assert log == ["clock", "clock", *lone_call, "clock", *lone_call]


def test_latency_is_that_of_the_last_call(monkeypatch):
    durations_s = iter([0.6 * kernel_timing.SETTLING_MS / 1e3, 0.5 * kernel_timing.SETTLING_MS / 1e3, 0.004])
    clock = SimpleNamespace(now_s=0.0)
    monkeypatch.setattr(kernel_timing, "perf_counter", lambda: clock.now_s)

    def call(_argument):
        clock.now_s += next(durations_s)

    assert latency_sampler(CPU)(Work(call)).times_ms["call"] == pytest.approx(4)


@pytest.mark.parametrize("sampler", [host_sampler, latency_sampler])
def test_what_a_call_returns_is_freed_when_no_clock_is_running(sampler, log):
    class Result:
        def __del__(self):
            log.append("freed")

    sampler(CPU)(Work(lambda _: Result()))
    assert log[-1] == "freed"
    assert " ".join(log).count("wait clock freed") == log.count("freed")


@pytest.fixture
def gpu():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA GPU")
    return torch.device("cuda")


@pytest.mark.gpu
def test_many_short_kernels_take_less_on_the_device_than_the_host_takes_to_launch_them(gpu):
    a = torch.randn(64, 64, device=gpu)
    work = Work(lambda _: [a.mul(2.0) for _ in range(50)])
    rule = StopRule(min_samples=20, max_samples=20, rel_error=0.0, budget_s=60)
    device_ms = interleave({"w": work}, kernel_sampler(gpu), {"w": rule}, warmup=5).taken["w"]
    enqueue_ms = interleave({"w": work}, latency_sampler(gpu), {"w": rule}, warmup=5).taken["w"].times_ms["enqueue"]
    assert device_ms.exposed <= 2
    assert sorted(device_ms.times_ms["device"])[10] < sorted(enqueue_ms)[10]


@pytest.mark.gpu
def test_a_long_kernel_takes_as_long_as_between_synchronised_moments(gpu):
    a = torch.randn(8192, 8192, device=gpu)
    work = Work(lambda _: a @ a)
    rule = StopRule(min_samples=10, max_samples=10, rel_error=0.0, budget_s=60)
    device_ms = interleave({"w": work}, kernel_sampler(gpu), {"w": rule}, warmup=3).taken["w"].times_ms["device"]
    host_ms = interleave({"w": work}, latency_sampler(gpu), {"w": rule}, warmup=3).taken["w"].times_ms["call"]
    assert sorted(device_ms)[5] == pytest.approx(sorted(host_ms)[5], rel=0.05)


@pytest.mark.gpu
def test_a_flushed_cache_makes_a_small_copy_slower_than_a_warm_one(gpu):
    size = torch.cuda.get_device_properties(gpu).L2_cache_size // 4
    source, target = torch.randn(2, size // 4, device=gpu)
    warm = Work(lambda _: target.copy_(source))

    class NoFlush(kernel_timing.CudaQueue):
        def flush_l2(self):
            target.copy_(source)

    rule = StopRule(min_samples=20, max_samples=20, rel_error=0.0, budget_s=60)
    cold_ms = interleave({"w": warm}, kernel_sampler(gpu), {"w": rule}, warmup=3).taken["w"].times_ms["device"]
    warm_ms = interleave({"w": warm}, KernelSampler(NoFlush(gpu)), {"w": rule}, warmup=3).taken["w"].times_ms["device"]
    assert sorted(cold_ms)[10] > sorted(warm_ms)[10]


@pytest.mark.gpu
def test_memory_of_a_call_that_ran_out_is_free_for_the_next(gpu):
    half = torch.cuda.mem_get_info(gpu)[0] // 2  # of what is free: other test processes keep some

    def too_much(_argument):
        return [torch.empty(half, dtype=torch.uint8, device=gpu) for _ in range(3)]

    works = {"large": Work(too_much), "half": Work(lambda _: torch.empty(half, dtype=torch.uint8, device=gpu))}
    found = interleave(works, kernel_sampler(gpu), dict.fromkeys(works, FIVE), warmup=1)
    assert found.taken["large"].out_of_memory
    assert len(found.taken["half"].times_ms["device"]) == 5
