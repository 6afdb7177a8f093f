import numpy as np
import pytest

from pipeline.formulas.buckets import best_bucket_bytes, bucketed_s, least_overhead_s
from pipeline.formulas.collectives import LinearCost

SIZE, LINK = 8e9, LinearCost(latency_s=50e-6, bytes_per_s=400e9)


def test_every_call_adds_its_latency_and_only_the_last_bucket_is_exposed():
    assert bucketed_s(SIZE, 1, LINK) == LINK.seconds(SIZE) == pytest.approx(20.05e-3)
    assert bucketed_s(SIZE, 20, LINK) == pytest.approx(20 * 0.05e-3 + 1e-3)


def test_the_best_bucket_size_matches_brute_force():
    counts = np.arange(1, 2000)
    overheads = [bucketed_s(SIZE, count, LINK) for count in counts]
    assert abs(SIZE / best_bucket_bytes(SIZE, LINK) - counts[int(np.argmin(overheads))]) <= 0.5
    assert least_overhead_s(SIZE, LINK) == pytest.approx(min(overheads), rel=1e-3)
