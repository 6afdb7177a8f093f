import pytest

from pipeline.formulas.collectives import bus_factor, fit_linear_cost, nccl_tests_bus_factor
from pipeline.stages.collectives.cell import COLLECTIVES

SIZES_BYTES = [1e6, 1e7, 1e8, 1e9]


@pytest.mark.parametrize(("world_size", "share"), [(1, 0), (2, 0.5), (4, 0.75), (8, 0.875)])
def test_a_ring_rank_sends_n_minus_1_over_n_and_twice_that_in_an_all_reduce(world_size, share):
    assert [bus_factor(name, world_size) for name in ("allreduce", "reduce_scatter_base")] == [2 * share, share]
    in_nccl_tests = {name: nccl_tests_bus_factor(name, world_size) for name in COLLECTIVES}
    ring = dict.fromkeys(COLLECTIVES, share) | {"all_reduce": 2 * share}
    assert in_nccl_tests == ring | {"broadcast": 1, "send_recv": 1}


@pytest.mark.parametrize(("latency_s", "bytes_per_s"), [(20e-6, 300e9), (2e-3, 1e9), (1, 1e12)])
def test_a_fit_recovers_the_line_through_the_times(latency_s, bytes_per_s):
    cost = fit_linear_cost(SIZES_BYTES, [latency_s + size / bytes_per_s for size in SIZES_BYTES])
    assert (cost.latency_s, cost.bytes_per_s) == pytest.approx((latency_s, bytes_per_s), rel=1e-6)


def test_every_size_has_the_same_weight_in_a_fit():
    """A fit of absolute errors would sacrifice the smallest size's time for the largest's."""
    times_s = [20e-6 + size / 300e9 for size in SIZES_BYTES]
    times_s[-1] *= 1.02
    cost = fit_linear_cost(SIZES_BYTES, times_s)
    assert cost.latency_s == pytest.approx(20e-6, rel=0.02)
    assert [cost.seconds(size) for size in SIZES_BYTES] == pytest.approx(times_s, rel=0.02)


def test_a_fitted_latency_is_never_negative():
    cost = fit_linear_cost([1e6, 1e7], [1e-6, 20e-6])
    assert cost.latency_s == 0
    assert 0.5e12 < cost.bytes_per_s < 1e12


@pytest.mark.parametrize(("sizes", "times"), [([1e6], [1]), ([1e6, 1e6], [1, 2]), ([1e6, 1e7], [2, 1])])
def test_a_single_size_or_times_that_do_not_grow_are_refused(sizes, times):
    with pytest.raises(ValueError, match=r"two sizes|do not grow"):
        fit_linear_cost(sizes, times)
