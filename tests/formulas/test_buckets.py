import pytest

from pipeline.formulas.buckets import (
    Link,
    best_bucket_bytes,
    best_num_buckets,
    bucketed_s,
    least_overhead_s,
    unhidden_s,
)

LINK, SIZE = Link(bytes_per_s=100e9, call_overhead_s=20e-6), 8e9


def test_the_best_number_of_buckets_beats_its_neighbours():
    best = best_num_buckets(SIZE, LINK)
    assert bucketed_s(SIZE, best, LINK) < min(bucketed_s(SIZE, best * step, LINK) for step in (0.9, 1.1))
    assert best_bucket_bytes(SIZE, LINK) == pytest.approx(SIZE / best)
    assert least_overhead_s(SIZE, LINK) == pytest.approx(bucketed_s(SIZE, best, LINK))


def test_one_bucket_hides_nothing():
    assert bucketed_s(SIZE, 1, LINK) == unhidden_s(SIZE, 1, LINK) == pytest.approx(80.02e-3)


def test_more_calls_after_the_backward_pass_cost_their_overhead():
    assert unhidden_s(SIZE, 500, LINK) - unhidden_s(SIZE, 1, LINK) == pytest.approx(499 * 20e-6)
