import numpy as np
import pytest

from pipeline.formulas.buckets import (
    best_bucket_bytes,
    best_num_buckets,
    bucketed_s,
    least_overhead_s,
)
from pipeline.formulas.collectives import LinearCost

LINK, SIZE = LinearCost(latency_s=20e-6, bytes_per_s=100e9), 8e9


def test_one_bucket_hides_nothing_and_each_call_costs_its_overhead():
    assert bucketed_s(SIZE, 1, LINK) == LINK.seconds(SIZE) == pytest.approx(80.02e-3)


TOTAL, CALL_S, BANDWIDTH = 8e9, 50e-6, 300e9
FAST_LINK = LinearCost(latency_s=CALL_S, bytes_per_s=BANDWIDTH)


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
    assert bucketed_s(TOTAL, buckets, FAST_LINK) == pytest.approx(expected, rel=0.02)


def test_the_optimum_is_where_brute_force_finds_it():
    counts = np.arange(1, 2000)
    overheads = [bucketed_s(TOTAL, count, FAST_LINK) for count in counts]
    best = counts[int(np.argmin(overheads))]
    assert abs(best_num_buckets(TOTAL, FAST_LINK) - best) <= 0.5
    assert best_bucket_bytes(TOTAL, FAST_LINK) == pytest.approx(TOTAL / best, rel=0.03)
    assert least_overhead_s(TOTAL, FAST_LINK) == pytest.approx(min(overheads), rel=1e-3)
