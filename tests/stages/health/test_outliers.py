import numpy as np
import pytest

from pipeline.stages.health.outliers import BLOCKS, FALSE_ALARMS, Standing, standing

from .conftest import noise

TESTS_OF_EIGHT = 4 * 8 + 8 * 7


def run_names_anything(seed, gpus=8, slower=None):
    """Return the GPUs that a run of all four works finds slow, among cards that differ by 0.7%."""
    rng = np.random.default_rng(seed)
    cards = 1 + 0.007 * rng.standard_normal(gpus)
    named = set()
    for _ in range(4):
        medians_ms = {str(gpu): cards[gpu] * (1.1 if gpu == slower else 1.0) for gpu in range(gpus)}
        samples = {name: noise(rng, median_ms, 60 if gpus > 2 else 40) for name, median_ms in medians_ms.items()}
        named |= {int(name) for name in samples if standing(name, samples).is_slow(TESTS_OF_EIGHT)}
    return named


def test_false_alarms_are_no_more_frequent_than_stated():
    alarms = sum(bool(run_names_anything(seed)) for seed in range(1000, 1200))
    assert alarms <= 200 * FALSE_ALARMS


def test_more_tests_in_a_run_require_a_smaller_chance_for_each():
    found = Standing(below_pct=10.0, chance=FALSE_ALARMS / 5)
    assert [found.is_slow(tests) for tests in (1, 4, 6)] == [True, True, False]


@pytest.mark.parametrize("gpus", [2, 8])
def test_a_gpu_ten_percent_slower_is_always_the_only_one_found(gpus):
    assert [run_names_anything(seed, gpus, slower=1) for seed in range(50)] == [{1}] * 50


def test_a_gpu_exactly_at_the_margin_is_found_no_more_often_than_false_alarms():
    # The worst case of the sign test: a GPU exactly 3% slower, each stretch as likely above as below.
    rng, alarms = np.random.default_rng(5), 0
    for _ in range(2000):
        own = (1 / 0.97 + 0.01 * rng.standard_normal(BLOCKS)).tolist()
        alarms += standing("own", {"own": own, "other": [1.0] * BLOCKS}).is_slow(1)
    assert alarms <= 2000 * FALSE_ALARMS


def test_noise_wider_than_the_margin_flags_nothing_and_the_median_is_of_the_others():
    jumping = [1.0, 1.0, 1.2, 1.2] * (BLOCKS // 2)
    assert not standing("own", {"own": jumping, "other": [1.0] * 2 * BLOCKS}).is_slow(1)
    even = {name: [ms] * BLOCKS for name, ms in {"own": 2.0, "a": 1.0, "b": 1.0, "c": 9.0}.items()}
    assert standing("own", even).below_pct == pytest.approx(50)
    assert standing("a", {"a": even["a"], "own": even["own"]}).below_pct == pytest.approx(-100)
    assert standing("own", {"own": even["own"]}) is None
