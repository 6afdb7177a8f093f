import numpy as np
import pytest

from pipeline.formulas.buckets import Link, best_bucket_bytes, best_num_buckets, bucketed_s
from pipeline.stages.ddp.overhead import pipelined_s

TOTAL, CALL_S, BANDWIDTH = 8e9, 50e-6, 300e9
LINK = Link(bytes_per_s=BANDWIDTH, call_overhead_s=CALL_S)


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
    assert bucketed_s(TOTAL, buckets, LINK) == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("buckets", [1, 3, 40])
def test_with_equal_times_the_measured_backward_gives_the_same(buckets):
    equal_times_s = TOTAL / BANDWIDTH
    found = pipelined_s([TOTAL / buckets] * buckets, equal_times_s, LINK)
    assert found == pytest.approx(bucketed_s(TOTAL, buckets, LINK))


def test_the_optimum_is_where_brute_force_finds_it():
    counts = np.arange(1, 2000)
    overheads = [bucketed_s(TOTAL, count, LINK) for count in counts]
    best = counts[int(np.argmin(overheads))]
    assert abs(best_num_buckets(TOTAL, LINK) - best) <= 0.5
    assert best_bucket_bytes(TOTAL, LINK) == pytest.approx(TOTAL / best, rel=0.03)


def test_a_backward_much_longer_than_the_transfers_hides_all_but_the_last():
    found = pipelined_s([TOTAL / 10] * 10, 10.0, LINK)
    assert found == pytest.approx(CALL_S + TOTAL / 10 / BANDWIDTH)


def test_without_a_backward_everything_is_left_over():
    found = pipelined_s([TOTAL / 10] * 10, 0.0, LINK)
    assert found == pytest.approx(10 * CALL_S + TOTAL / BANDWIDTH)


def test_a_small_last_bucket_leaves_less_over_than_a_large_one():
    small_last, large_last = [9e9, 1e9], [1e9, 9e9]
    assert pipelined_s(small_last, 1.0, LINK) < pipelined_s(large_last, 1.0, LINK)
