import pytest
import torch
from torch import nn

from pipeline.instruments.sampling import weight_differences
from pipeline.parallel.processes.starting import run_ranks


def models():
    first, second = nn.Linear(3, 2), nn.Linear(3, 2)
    second.load_state_dict(first.state_dict())
    return first, second


def test_equal_weights_are_no_distance_apart():
    first, second = models()
    assert weight_differences.difference_from(second, weight_differences.sample(first)) == 0


def test_the_difference_is_that_of_the_weight_farthest_apart():
    first, second = models()
    sampled = weight_differences.sample(first)
    with torch.no_grad():
        first.weight[1, 2] += 0.5
        second.bias[0] -= 0.25
    # A sample does not follow its model.
    assert weight_differences.difference_from(first, sampled) == pytest.approx(0.5)
    assert weight_differences.difference_from(second, sampled) == pytest.approx(0.25)


def test_of_a_large_parameter_the_sample_reaches_from_end_to_end(monkeypatch):
    monkeypatch.setattr(weight_differences, "SAMPLES_A_PARAMETER", 10)
    model = nn.Linear(96, 1)
    with torch.no_grad():
        model.weight.copy_(torch.arange(96.0))
        model.bias.fill_(-1)
    assert weight_differences.sample(model).tolist() == [*range(0, 96, 10), -1]


def differ_on_last_rank(context):
    model = nn.Linear(3, 2)
    with torch.no_grad():
        for weight in model.parameters():
            weight.fill_(-1)
        if context.rank == context.world_size - 1:
            model.weight[0, 0] = -0.25
    return weight_differences.difference_between_ranks(model)


def test_one_rank_apart_from_the_others_shows_on_all():
    assert run_ranks(differ_on_last_rank, 3, backend="gloo") == [0.75] * 3
