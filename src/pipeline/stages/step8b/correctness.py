"""Check the fused model: compare its loss and gradients with those of the plain model in fp32 and in bf16."""

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from pipeline.formulas.sizes import SIZES
from pipeline.model.fused.language_model import FusedLM
from pipeline.model.fused.operations import best_operations
from pipeline.model.transformer import TransformerLM
from pipeline.stages.step8b.cell import Cell, Settings
from pipeline.stages.step8b.models import COMPUTE_DTYPE, best_attention, plain_model, random_batch

# The loss, and the errors of loss and gradients relative to fp32.
Errors = dict[str, float]


class WithLoss(nn.Module):
    """The plain model and its loss, computed in one piece."""

    def __init__(self, model: TransformerLM) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Compute the mean cross-entropy in nats."""
        return functional.cross_entropy(self.model(tokens).float().flatten(0, 1), targets.flatten())


def check(cell: Cell, settings: Settings, device: torch.device) -> dict[str, Errors]:
    """Compare the fused model, and the plain one in bf16, with the plain one in fp32: same weights, few layers.

    The weights are first rounded to bf16, so that all three compute the same function.
    """
    size = replace(SIZES[cell.size], num_layers=min(settings.checked_layers, SIZES[cell.size].num_layers))
    context = min(settings.checked_context, cell.context_length)
    batch = random_batch(settings.vocab_size, context, device, seed=0)
    exact = plain_model(size, settings.vocab_size, context, "eager", device)
    rounded = _in_compute_dtype(exact)
    for parameter, source in zip(exact.parameters(), rounded.parameters(), strict=True):
        parameter.data = source.data.float()
    reference = _loss_and_gradients(WithLoss(exact), batch)
    levels = [("attention", "gate_up")[number % 2] for number in range(size.num_layers)]
    ours = FusedLM(copy.deepcopy(rounded), best_operations(device), best_attention(device), levels)
    models = {"ours": ours, "bf16_eager": WithLoss(rounded)}
    return {name: _errors(_loss_and_gradients(model, batch), reference) for name, model in models.items()}


def check_rows(errors: dict[str, Errors], settings: Settings) -> list[dict[str, Any]]:
    """Return the rows of a check, the fused model's first; if wrong, its reason says which error is too large."""
    said = {"ours": _why_wrong(errors["ours"], errors["bf16_eager"], settings)}
    return [
        {
            "impl": name,
            "measures": "check",
            **({"status": "wrong", "reason": said[name]} if said.get(name) else {"status": "ok"}),
            **found,
        }
        for name, found in errors.items()
    ]


def _why_wrong(ours: Errors, plain: Errors, settings: Settings) -> str:
    off, tolerance = ours["loss_error"], settings.loss_tolerance
    if not off <= tolerance:  # `not <=` also catches NaN
        return f"loss {ours['loss']:.5g} is {off:.2g} from that in fp32, allowed {tolerance:g}"
    for what in ("gradient_error", "worst_gradient_error"):
        found, allowed = ours[what], settings.error_factor * plain[what]
        if not found <= allowed:
            return f"{what} is {found:.3g}, allowed {allowed:.3g}, {settings.error_factor:g} times the plain model's"
    return ""


def _in_compute_dtype(model: TransformerLM) -> TransformerLM:
    """Copy a model and cast its parameters, but not the rotary tables, to the compute dtype."""
    copied = copy.deepcopy(model)
    for parameter in copied.parameters():
        parameter.data = parameter.data.to(COMPUTE_DTYPE)
    return copied


def _loss_and_gradients(model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[float, list[Tensor]]:
    loss = model(*batch)
    # In the order of the modules, which is the same in all models.
    return loss.item(), list(torch.autograd.grad(loss, list(model.parameters())))


def _errors(found: tuple[float, Sequence[Tensor]], reference: tuple[float, Sequence[Tensor]]) -> Errors:
    (loss, gradients), (exact_loss, exact) = found, reference
    differences = [
        (float((one.float() - other).norm()), float(other.norm())) for one, other in zip(gradients, exact, strict=True)
    ]
    off, whole = (torch.tensor(norms, dtype=torch.float64).norm() for norms in zip(*differences, strict=True))
    return {
        "loss": loss,
        "loss_error": abs(loss - exact_loss) / exact_loss,
        "gradient_error": float(off / whole),
        "worst_gradient_error": max(one / other for one, other in differences),
    }
