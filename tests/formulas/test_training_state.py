from dataclasses import astuple

import pytest
import torch

from pipeline.formulas.parameters import parameter_count
from pipeline.formulas.training_state import Sharded, training_state

from .models import ODD_SIZE, build_model


@pytest.mark.parametrize("activation_bytes", [0, 10, 50, 99])
def test_the_least_number_of_devices_is_just_enough(activation_bytes):
    sharded = Sharded(1000 + activation_bytes / 2, activation_bytes / 2)
    least = sharded.least_devices(50)
    assert sharded.bytes_per_device(least) < 50
    assert sharded.bytes_per_device(least - 1) >= 50


def test_less_than_means_less_than_and_an_unsharded_share_stands_whole_on_every_device():
    assert Sharded(1000, 0).least_devices(100) == 11
    assert Sharded(1050, 50).least_devices(50) is None  # the activations fill a device
    assert Sharded(1020, 60).bytes_per_device(10) == 1020 / 10 + 60


def test_training_state_bytes_equal_parameters_gradients_and_moments():
    model = build_model(ODD_SIZE, vocab_size=100)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.zeros(1, 24, dtype=torch.int64)).sum().backward()
    optimizer.step()
    parameters = list(model.parameters())
    gradients = [parameter.grad for parameter in parameters]
    moments = [optimizer.state[parameter][name] for parameter in parameters for name in ("exp_avg", "exp_avg_sq")]
    state = training_state(parameter_count(ODD_SIZE, 100))
    for of_kind, counted in zip((parameters, gradients, moments), astuple(state), strict=True):
        assert sum(tensor.nbytes for tensor in of_kind) == counted
    assert state.total_bytes == sum(astuple(state))
