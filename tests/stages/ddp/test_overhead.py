import numpy as np
import pytest

from pipeline.stages.ddp.overhead import optimal_bucket_bytes, optimal_buckets, overhead_s, pipelined_overhead_s

TOTAL, CALL_S, BANDWIDTH = 8e9, 50e-6, 300e9


def simulated_overhead_s(buckets, steps_a_transfer=2000):
    """Move time forward in small steps: a bucket fills while backward runs, the link carries one at a time."""
    fill_s = TOTAL / buckets / BANDWIDTH
    tick_s = fill_s / steps_a_transfer
    ready, sent, busy_until, now = 0, 0, None, 0.0
    while sent < buckets:
        now += tick_s
        ready = min(buckets, int(now / fill_s + 1e-9))
        if busy_until is not None and now >= busy_until:
            sent, busy_until = sent + 1, None
        if busy_until is None and sent < ready:
            busy_until = now + CALL_S + fill_s
    return now - buckets * fill_s


@pytest.mark.parametrize("buckets", [1, 2, 7, 20])
def test_the_overhead_is_that_of_a_simulated_pipeline(buckets):
    expected = simulated_overhead_s(buckets)
    assert overhead_s(TOTAL, buckets, CALL_S, BANDWIDTH) == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("buckets", [1, 3, 40])
def test_with_equal_times_the_measured_backward_gives_the_same(buckets):
    equal_times_s = TOTAL / BANDWIDTH
    found = pipelined_overhead_s([TOTAL / buckets] * buckets, equal_times_s, CALL_S, BANDWIDTH)
    assert found == pytest.approx(overhead_s(TOTAL, buckets, CALL_S, BANDWIDTH))


def test_the_optimum_is_where_brute_force_finds_it():
    counts = np.arange(1, 2000)
    overheads = [overhead_s(TOTAL, count, CALL_S, BANDWIDTH) for count in counts]
    best = counts[int(np.argmin(overheads))]
    assert abs(optimal_buckets(TOTAL, CALL_S, BANDWIDTH) - best) <= 0.5
    assert optimal_bucket_bytes(TOTAL, CALL_S, BANDWIDTH) == pytest.approx(TOTAL / best, rel=0.03)


def test_the_optimum_of_known_figures():
    # s/(w·o) = 100 MB / (10 GB/s · 1 ms) = 10.
    assert optimal_buckets(100e6, 1e-3, 10e9) == pytest.approx(10**0.5)
    assert optimal_bucket_bytes(100e6, 1e-3, 10e9) == pytest.approx(100e6 / 10**0.5)


def test_a_backward_much_longer_than_the_transfers_hides_all_but_the_last():
    found = pipelined_overhead_s([TOTAL / 10] * 10, backward_s=10.0, call_overhead_s=CALL_S, bandwidth=BANDWIDTH)
    assert found == pytest.approx(CALL_S + TOTAL / 10 / BANDWIDTH)


def test_without_a_backward_everything_is_left_over():
    found = pipelined_overhead_s([TOTAL / 10] * 10, backward_s=0.0, call_overhead_s=CALL_S, bandwidth=BANDWIDTH)
    assert found == pytest.approx(10 * CALL_S + TOTAL / BANDWIDTH)


def test_a_small_last_bucket_leaves_less_over_than_a_large_one():
    small_last, large_last = [9e9, 1e9], [1e9, 9e9]
    rest = {"backward_s": 1.0, "call_overhead_s": CALL_S, "bandwidth": BANDWIDTH}
    assert pipelined_overhead_s(small_last, **rest) < pipelined_overhead_s(large_last, **rest)
