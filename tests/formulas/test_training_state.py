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


def test_replicated_bytes_are_whole_on_every_device():
    assert Sharded(1050, 50).least_devices(50) is None  # the activations fill a device
    assert Sharded(1020, 60).bytes_per_device(10) == 1020 / 10 + 60


def test_training_state_bytes_equal_parameters_gradients_and_moments():
    model = build_model(ODD_SIZE, vocab_size=100)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.zeros(1, 24, dtype=torch.int64)).sum().backward()
    optimizer.step()
    parameters = list(model.parameters())
    gradients = [parameter.grad for parameter in parameters]
    moments = [each[name] for each in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]
    state = training_state(parameter_count(ODD_SIZE, 100))
    counted = [sum(tensor.nbytes for tensor in of_kind) for of_kind in (parameters, gradients, moments)]
    assert (*counted, sum(counted)) == (*astuple(state), state.total_bytes)
