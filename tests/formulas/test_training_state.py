import pytest
import torch

from pipeline.formulas.parameters import parameter_count
from pipeline.formulas.training_state import Sharded, devices_to_hold, training_state
from pipeline.formulas.units import GB, GIB
from pipeline.stages.accounting.models import XXL

from .models import ODD_SIZE, build_model


def test_the_xxl_state_is_3276_gib_or_44_gpus_of_80_gb_and_its_activations_are_the_inputs_of_both_layers_in_bf16():
    state = training_state(XXL.parameters)
    assert XXL.parameters == 219_848_638_464
    assert state.total_bytes == 3276 * GIB
    assert (state.weights_bytes, state.optimizer_bytes) == (4 * XXL.parameters, 8 * XXL.parameters)
    assert [devices_to_hold(state.total_bytes, 80 * unit) for unit in (GB, GIB)] == [44, 41]
    assert XXL.activation_bytes(3, 100) == 300 * XXL.activation_bytes(1, 1) == 300 * 2 * 126 * (16384 + 53248)


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
    counted = sum(tensor.nbytes for tensor in (*parameters, *gradients, *moments))
    assert training_state(parameter_count(ODD_SIZE, 100)).total_bytes == counted
