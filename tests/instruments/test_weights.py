import pytest
import torch
from torch import nn

from pipeline.instruments import weights
from pipeline.parallel.processes import run_ranks


def models():
    first, second = nn.Linear(3, 2), nn.Linear(3, 2)
    second.load_state_dict(first.state_dict())
    return first, second


def test_equal_weights_are_no_distance_apart():
    first, second = models()
    assert weights.difference_from(second, weights.copy_to_host(first)) == 0


def test_the_difference_is_that_of_the_weight_farthest_apart():
    first, second = models()
    copied = weights.copy_to_host(first)
    with torch.no_grad():
        first.weight[1, 2] += 0.5
        second.bias[0] -= 0.25
    # A copy does not follow its model.
    assert weights.difference_from(first, copied) == pytest.approx(0.5)
    assert weights.difference_from(second, copied) == pytest.approx(0.25)


def differ_on_last_rank(context):
    model = nn.Linear(3, 2)
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()
        model.weight[0, 0] = 0.75 if context.rank == context.world_size - 1 else 0
    return weights.difference_between_ranks(model)


def test_one_rank_apart_from_the_others_shows_on_all():
    assert run_ranks(differ_on_last_rank, 3, backend="gloo") == [0.75] * 3
