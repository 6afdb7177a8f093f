import pytest
import torch
from torch import nn

from pipeline.stages.precision.autocast import Observed, ToyModel, observe_training_step

TYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
GRADIENTS = {"fc1.weight", "ln.weight", "ln.bias", "fc2.weight"}


def by_component(rows):
    dtypes = {}
    for row in rows:
        dtypes.setdefault(row["component"], {})[row["detail"]] = row["observed_dtype"]
    return dtypes


def test_the_toy_model_is_the_assignments():
    model = ToyModel(16, 5)
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    assert shapes == {"fc1.weight": (10, 16), "ln.weight": (10,), "ln.bias": (10,), "fc2.weight": (5, 10)}
    x = torch.randn(3, 16)
    hidden = torch.relu(x @ model.fc1.weight.T)
    expected = nn.functional.layer_norm(hidden, (10,)) @ model.fc2.weight.T
    torch.testing.assert_close(model(x), expected)


@pytest.mark.parametrize("low", TYPES)
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_autocast_runs_products_in_the_low_type_and_statistics_and_loss_in_fp32(low, device):
    seen = by_component(observe_training_step(TYPES[low], torch.device(device)).rows())
    for component in ("matmul_inputs", "fc1_output", "logits"):
        assert seen[component] == {"": low}
    assert low in seen["activation_gradients"].values()
    assert seen["parameters"] == seen["gradients"] == dict.fromkeys(GRADIENTS, "fp32")
    assert seen["layernorm_statistics"] == {"mean": "fp32", "1/std": "fp32"}
    assert (seen["loss"]["cross-entropy"], seen["loss"]["cross-entropy outside autocast"]) == ("fp32", low)
    if device == "cuda":
        assert seen["layernorm_input"] == seen["layernorm_output"] == {"": "fp32"}


def test_without_autocast_every_type_is_the_models_own_and_several_types_are_joined():
    model, observed = ToyModel(16, 5).double(), Observed()
    observed.watch(model)
    with observed:
        logits = model(torch.randn(4, 16, dtype=torch.float64))
    logits.sum().backward()
    seen = by_component(observed.rows())
    assert {dtype for details in seen.values() for dtype in details.values()} == {"fp64"}
    assert set(seen) >= {"parameters", "fc1_output", "relu_output", "layernorm_output", "logits", "gradients"}
    observed.add("logits", "", torch.ones(1, dtype=torch.float16))
    assert by_component(observed.rows())["logits"] == {"": "fp16/fp64"}
