"""The autocast experiment: the data type of each part of a training step, observed by hooks while it runs."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from pipeline.compat.torch_private import TorchDispatchMode
from pipeline.stages.precision.cases import AUTOCAST_DTYPES
from pipeline.stages.precision.dtypes import NAMES, TORCH_DTYPES

BATCH_SIZE, IN_FEATURES, HIDDEN, OUT_FEATURES = 8, 16, 10, 5
SEED = 0

OUTPUTS = {"fc1": "fc1_output", "relu": "relu_output", "ln": "layernorm_output", "fc2": "logits"}

Row = dict[str, str]


class ToyModel(nn.Module):
    """The assignment's: two linear layers with a ReLU and a layer norm between; (batch, in) to logits (batch, out)."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(in_features, HIDDEN, bias=False)
        self.ln = nn.LayerNorm(HIDDEN)
        self.fc2 = nn.Linear(HIDDEN, out_features, bias=False)
        self.relu = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        return self.fc2(self.ln(self.relu(self.fc1(x))))


@dataclass
class Observed:
    """The data types seen, by component and detail."""

    dtypes: dict[tuple[str, str], set[str]] = field(default_factory=dict)

    def add(self, component: str, detail: str, dtype: torch.dtype) -> None:
        """Note that this part of a component had this data type."""
        self.dtypes.setdefault((component, detail), set()).add(NAMES[dtype])

    def rows(self) -> list[Row]:
        """Return a row for each component and detail; several data types are joined by a slash."""
        return [
            {"component": component, "detail": detail, "observed_dtype": "/".join(sorted(dtypes))}
            for (component, detail), dtypes in self.dtypes.items()
        ]


class OperatorDtypes(TorchDispatchMode):
    """Observe what kernels see after autocast: inputs of matrix products, inputs and statistics of layer norm."""

    def __init__(self, observed: Observed) -> None:
        super().__init__()
        self.observed = observed

    def __torch_dispatch__(self, operator: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        """Run the operator and note the data types of its inputs and results."""
        results = operator(*args, **(kwargs or {}))
        if operator is torch.ops.aten.mm.default:
            for matrix in args[:2]:
                self.observed.add("matmul_inputs", "", matrix.dtype)
        if operator is torch.ops.aten.native_layer_norm.default:
            self.observed.add("layernorm_input", "", args[0].dtype)
            for name, statistic in zip(("mean", "1/std"), results[1:], strict=True):
                self.observed.add("layernorm_statistics", name, statistic.dtype)
        return results


def measure_autocast(device: torch.device) -> list[dict[str, Any]]:
    """Return a row for each autocast data type and component of the toy model's training step."""
    return [
        {"autocast_dtype": name, **row, "status": "ok"}
        for name in AUTOCAST_DTYPES
        for row in observe_training_step(TORCH_DTYPES[name], device).rows()
    ]


def observe_training_step(autocast_dtype: torch.dtype, device: torch.device) -> Observed:
    """Run forward, loss and backward of the toy model under autocast and return the data types seen."""
    torch.manual_seed(SEED)
    model = ToyModel(IN_FEATURES, OUT_FEATURES).to(device)
    inputs = torch.randn(BATCH_SIZE, IN_FEATURES, device=device)
    targets = torch.randint(OUT_FEATURES, (BATCH_SIZE,), device=device)
    observed = Observed()
    observed.add("input", "", inputs.dtype)
    _hook(model, observed)
    with torch.autocast(device.type, dtype=autocast_dtype):
        with OperatorDtypes(observed):
            logits = model(inputs)
        losses = {name: loss(logits, targets) for name, loss in _losses().items()}
    losses["cross-entropy outside autocast"] = functional.cross_entropy(logits, targets)
    for name, loss in losses.items():
        observed.add("loss", name, loss.dtype)
    losses["cross-entropy"].backward()
    return observed


def _losses() -> dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]]:
    """Return candidates for "the loss", which the assignment does not define."""
    return {
        "cross-entropy": functional.cross_entropy,
        "mean squared error": lambda logits, targets: functional.mse_loss(logits, torch.zeros_like(logits)),
        "mean of the logits": lambda logits, targets: logits.mean(),
        "sum of the logits": lambda logits, targets: logits.sum(),
    }


def _hook(model: nn.Module, observed: Observed) -> None:
    """Observe each module's parameters and output as it runs, and gradients as they arrive."""
    for name, module in model.named_children():
        module.register_forward_hook(_see_forward(name, observed))
    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(_see_gradient(name, observed))


def _see_forward(name: str, observed: Observed) -> Callable[..., None]:
    def hook(module: nn.Module, inputs: tuple, output: torch.Tensor) -> None:
        for parameter_name, parameter in module.named_parameters():
            observed.add("parameters", f"{name}.{parameter_name}", parameter.dtype)
        observed.add(OUTPUTS[name], "", output.dtype)
        output.register_hook(lambda gradient: observed.add("activation_gradients", OUTPUTS[name], gradient.dtype))

    return hook


def _see_gradient(name: str, observed: Observed) -> Callable[[torch.Tensor], None]:
    def hook(parameter: torch.Tensor) -> None:
        assert parameter.grad is not None  # the hook runs after accumulation
        observed.add("gradients", name, parameter.grad.dtype)

    return hook
