import math

import numpy as np
import pytest

from pipeline.statistics.medians import log_median_error, pooled_spread

from .samples import process


def test_the_error_of_a_median_accounts_for_correlated_samples():
    generator = np.random.default_rng(7)
    processes = [process(generator, 1.0, noise=0.01, between=0.0, drift=0.0, count=50) for _ in range(300)]
    true_error = np.std([math.log(np.median(samples)) for samples in processes])
    errors = [log_median_error(samples)[0] for samples in processes]
    assert np.median(errors) == pytest.approx(true_error, rel=0.15)
    assert log_median_error(processes[0])[1] == 50 / 5 - 1  # in blocks of 5


def test_the_spread_of_repeats_is_that_of_logs_around_the_mean_of_each_group():
    found = pooled_spread([[100.0, 110.0], [1.0, 1.1, 1.21], [7.0]])
    step = math.log(1.1)
    assert found.degrees == 1 + 2
    assert found.log_std == pytest.approx(math.sqrt((step**2 / 2 + 2 * step**2) / 3))
    assert pooled_spread([[7.0]]).degrees == pooled_spread([]).degrees == 0
