import pytest
import torch
from torch import nn

from pipeline.stages.precision.autocast import Observed, OperatorDtypes, ToyModel, _hook, observe_training_step

CPU = torch.device("cpu")
TYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
GRADIENTS = {"fc1.weight", "ln.weight", "ln.bias", "fc2.weight"}


def by_component(rows):
    dtypes = {}
    for row in rows:
        dtypes.setdefault(row["component"], {})[row["detail"]] = row["observed_dtype"]
    return dtypes


@pytest.fixture(params=sorted(TYPES))
def low(request):
    return request.param


@pytest.fixture
def seen(low):
    return by_component(observe_training_step(TYPES[low], CPU).rows())


def test_the_toy_model_is_the_assignments():
    model = ToyModel(16, 5)
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    assert shapes == {"fc1.weight": (10, 16), "ln.weight": (10,), "ln.bias": (10,), "fc2.weight": (5, 10)}
    x = torch.randn(3, 16)
    hidden = torch.relu(x @ model.fc1.weight.T)
    expected = nn.functional.layer_norm(hidden, (10,)) @ model.fc2.weight.T
    torch.testing.assert_close(model(x), expected)


def test_parameters_and_their_gradients_stay_in_fp32(seen):
    assert seen["parameters"] == dict.fromkeys(GRADIENTS, "fp32")
    assert seen["gradients"] == dict.fromkeys(GRADIENTS, "fp32")


def test_linear_layers_take_and_give_the_low_type(seen, low):
    assert seen["matmul_inputs"] == {"": low}
    assert seen["fc1_output"] == {"": low}
    assert seen["logits"] == {"": low}
    assert set(seen["activation_gradients"].values()) >= {low}


def test_cross_entropy_is_in_fp32_under_autocast_and_in_the_low_type_outside(seen, low):
    assert seen["loss"]["cross-entropy"] == "fp32"
    assert seen["loss"]["cross-entropy outside autocast"] == low


def test_layer_norm_keeps_its_statistics_in_fp32(seen):
    assert seen["layernorm_statistics"] == {"mean": "fp32", "1/std": "fp32"}


def test_without_autocast_the_hooks_see_the_models_own_type_everywhere():
    model, observed = ToyModel(16, 5).double(), Observed()
    _hook(model, observed)
    with OperatorDtypes(observed):
        logits = model(torch.randn(4, 16, dtype=torch.float64))
    logits.sum().backward()
    seen = by_component(observed.rows())
    assert {dtype for details in seen.values() for dtype in details.values()} == {"fp64"}
    assert set(seen) >= {"parameters", "fc1_output", "relu_output", "layernorm_output", "logits", "gradients"}


def test_what_was_seen_in_two_types_says_so():
    observed = Observed()
    observed.add("logits", "", torch.float32)
    observed.add("logits", "", torch.float16)
    assert observed.rows() == [{"component": "logits", "detail": "", "observed_dtype": "fp16/fp32"}]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_on_a_gpu_autocast_runs_layer_norm_in_fp32(low):
    seen = by_component(observe_training_step(TYPES[low], torch.device("cuda")).rows())
    assert seen["layernorm_input"] == {"": "fp32"}
    assert seen["layernorm_output"] == {"": "fp32"}
    assert seen["fc1_output"] == {"": low}
    assert seen["gradients"] == dict.fromkeys(GRADIENTS, "fp32")
