import math
from pathlib import Path

import numpy as np
import pytest

from pipeline.compare.runs import load_runs
from pipeline.registry import stages
from pipeline.statistics.steps import ALARM_RATE, steps

ROOT = Path(__file__).parents[2]
SEEDS = 200


@pytest.fixture(scope="module")
def noise():
    """Return how far published repeats lie from the mean of their cell, as logs: hundreds of processes."""
    [run] = load_runs([ROOT / "docs/earlier-h200"], stages())
    medians = run.frames["timing"]["medians_ms"].dropna()
    logs = [np.log(each) for each in medians if len(each) > 1]
    # Repeats lie closer to their own mean than to the true one: the factor makes up for it.
    apart = np.concatenate([(each - each.mean()) * math.sqrt(len(each) / (len(each) - 1)) for each in logs])
    assert len(apart) > 100
    return apart


def times(noise, seed, factors, repeats):
    """Draw runs with noise like that of published repeats, each scaled by its factor."""
    generator = np.random.default_rng(seed)
    return [list(factor * np.exp(generator.choice(noise, repeats))) for factor in factors]


@pytest.mark.parametrize("repeats", [1, 3])
def test_runs_that_do_not_differ_have_steps_no_more_often_than_the_alarm_rate(noise, repeats):
    alarms = sum(bool(steps(times(noise, seed, [1.0] * 20, repeats))) for seed in range(SEEDS))
    assert alarms <= ALARM_RATE * SEEDS


@pytest.mark.parametrize(("place", "repeats"), [(10, 1), (4, 3), (18, 3)])
def test_a_step_of_ten_percent_is_found_at_its_run(noise, place, repeats):
    for seed in range(20):
        factors = [1.0] * place + [1.1] * (20 - place)
        found = max(steps(times(noise, seed, factors, repeats)), key=lambda step: abs(math.log(step.ratio)))
        assert found.place == place
        assert found.ratio == pytest.approx(1.1, rel=0.03)


def test_times_that_rise_and_then_fall_back_have_two_steps():
    waves = (1.0, 1.001, 0.999, 1.0, 1.002, 0.998)
    found = steps([[level * wave] * 3 for level in (10.0, 12.0, 10.0) for wave in waves])
    assert [(step.place, step.ratio) for step in found] == [(6, pytest.approx(1.2)), (12, pytest.approx(1 / 1.2))]


def test_a_step_below_one_percent_a_single_slow_run_and_too_few_runs_are_not_steps():
    assert steps([[10.0] * 3] * 4 + [[10.05] * 3] * 4) == []
    assert steps([[10.0 + 0.001 * place] for place in range(5)] + [[20.0]] + [[10.0]] * 5) == []
    assert steps([[10.0]]) == steps([[10.0], [20.0]]) == []
