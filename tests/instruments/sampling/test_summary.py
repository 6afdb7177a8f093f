import numpy as np
import pytest

from pipeline.cells.timed_rows import summarise
from pipeline.instruments.sampling.summary import rel_error


@pytest.mark.parametrize("alike", [0.0, 0.5])
@pytest.mark.parametrize("count", [10, 20, 60])
def test_the_relative_error_is_the_spread_of_medians_even_for_correlated_samples(alike, count):
    steps = np.random.default_rng(1).normal(size=(1000, count))
    noise = steps[:, :1]
    for column in range(1, count):
        noise = np.hstack([noise, alike * noise[:, -1:] + (1 - alike**2) ** 0.5 * steps[:, column : column + 1]])
    experiments = 100 + noise
    observed = np.median(experiments, axis=1).std() / 100
    predicted = np.mean([rel_error(samples) for samples in experiments.tolist()])
    assert predicted == pytest.approx(observed, rel=0.15 if count > 10 else 0.25)


def test_quartiles_of_few_samples_are_unbiased():
    samples = [1.0, 4.0, 2.0, 8.0, 3.0, 7.0]
    q1, median, q3 = np.percentile(samples, [25, 50, 75], method="median_unbiased")
    assert rel_error(samples) == pytest.approx(1.2533 / 1.349 * (q3 - q1) / 6**0.5 / median)


def test_steadily_rising_samples_count_as_a_ninth_of_their_number():
    rising = np.linspace(10.0, 11.0, 1001).tolist()  # quartiles 0.5 apart, the median 10.5
    assert rel_error(rising) == pytest.approx(1.2533 / 1.349 * 0.5 / 10.5 / (1001 / 9) ** 0.5, rel=0.01)


def test_few_or_equal_samples_have_an_error_and_a_single_one_has_no_spread():
    assert [rel_error(samples) for samples in ([1.0], [2.0] * 10)] == [float("inf"), 0.0]
    assert 0 < rel_error([1.0, 1.1, 1.2]) < 0.1
    alone = summarise([3.0])
    assert (alone["median_ms"], alone["std_ms"], alone["rel_error"]) == (3.0, None, None)
    assert None not in summarise([3.0, 4.0]).values()


def test_each_statistic_is_what_its_name_says():
    found = summarise([1.0, 2.0, 3.0, 10.0])
    expected = {"n": 4, "min_ms": 1, "q1_ms": 1.75, "median_ms": 2.5, "q3_ms": 4.75, "max_ms": 10, "mean_ms": 4}
    assert {name: found[name] for name in expected} == expected
    assert found["std_ms"] == pytest.approx(4.0825, abs=1e-4)
