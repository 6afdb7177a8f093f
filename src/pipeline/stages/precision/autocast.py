"""The autocast experiment: the data type of each part of a training step, observed by hooks while it runs."""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from pipeline.compat.torch_private import TorchDispatchMode
from pipeline.stages.precision.accumulation import TORCH_DTYPES
from pipeline.stages.precision.cases import AUTOCAST_DTYPES

NAMES = {dtype: name for name, dtype in TORCH_DTYPES.items()}
BATCH_SIZE, IN_FEATURES, HIDDEN, OUT_FEATURES = 8, 16, 10, 5
SEED = 0

OUTPUTS = {"fc1": "fc1_output", "relu": "relu_output", "ln": "layernorm_output", "fc2": "logits"}
# Candidates for "the loss", which the assignment does not define.
LOSSES = {
    "cross-entropy": functional.cross_entropy,
    "mean squared error": lambda logits, _targets: functional.mse_loss(logits, torch.zeros_like(logits)),
    "mean of the logits": lambda logits, _targets: logits.mean(),
    "sum of the logits": lambda logits, _targets: logits.sum(),
}


class ToyModel(nn.Module):
    """The assignment's model, (batch, in) to logits (batch, out): linear, ReLU, layer norm, linear."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(in_features, HIDDEN, bias=False)
        self.ln = nn.LayerNorm(HIDDEN)
        self.fc2 = nn.Linear(HIDDEN, out_features, bias=False)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        return self.fc2(self.ln(self.relu(self.fc1(x))))


class Observed(TorchDispatchMode):
    """Collect the data types seen, by component and detail.

    Inside this context, also those that kernels see after autocast: inputs of matrix products, and inputs and
    statistics of layer norm.
    """

    def __init__(self) -> None:
        super().__init__()
        self._dtypes: dict[tuple[str, str], set[str]] = {}

    def add(self, component: str, detail: str, tensor: Tensor) -> None:
        """Record the data type of one part of a component."""
        self._dtypes.setdefault((component, detail), set()).add(NAMES[tensor.dtype])

    def rows(self) -> list[dict[str, str]]:
        """Return a row for each component and detail; several data types are joined by a slash."""
        return [
            {"component": component, "detail": detail, "observed_dtype": "/".join(sorted(dtypes))}
            for (component, detail), dtypes in self._dtypes.items()
        ]

    def watch(self, model: nn.Module) -> None:
        """Observe each module's parameters and output as it runs, and gradients as they arrive."""
        for name, module in model.named_children():
            module.register_forward_hook(partial(self._see_forward, name))
        for name, parameter in model.named_parameters():
            parameter.register_post_accumulate_grad_hook(partial(self._see_gradient, name))

    def __torch_dispatch__(self, operator: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        """Run the operator; record the data types of its inputs or results if it is a product or layer norm."""
        results = operator(*args, **(kwargs or {}))
        if operator is torch.ops.aten.mm.default:
            for matrix in args[:2]:
                self.add("matmul_inputs", "", matrix)
        if operator is torch.ops.aten.native_layer_norm.default:
            self.add("layernorm_input", "", args[0])
            for name, statistic in zip(("mean", "1/std"), results[1:], strict=True):
                self.add("layernorm_statistics", name, statistic)
        return results

    def _see_forward(self, name: str, module: nn.Module, _inputs: tuple, output: Tensor) -> None:
        for parameter_name, parameter in module.named_parameters():
            self.add("parameters", f"{name}.{parameter_name}", parameter)
        self.add(OUTPUTS[name], "", output)
        output.register_hook(partial(self.add, "activation_gradients", OUTPUTS[name]))

    def _see_gradient(self, name: str, parameter: Tensor) -> None:
        assert parameter.grad is not None  # the hook runs after accumulation
        self.add("gradients", name, parameter.grad)


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
    observed.add("input", "", inputs)
    observed.watch(model)
    with torch.autocast(device.type, dtype=autocast_dtype):
        with observed:
            logits = model(inputs)
        losses = {name: loss(logits, targets) for name, loss in LOSSES.items()}
    losses["cross-entropy outside autocast"] = functional.cross_entropy(logits, targets)
    for name, loss in losses.items():
        observed.add("loss", name, loss)
    losses["cross-entropy"].backward()
    return observed
