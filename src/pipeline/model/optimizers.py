"""Optimizers besides PyTorch's AdamW: Muon for matrices, and AdamW with moments in bf16."""

import math
from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import Tensor, nn

from pipeline.errors import Skipped
from pipeline.model.transformer import TransformerLM

Moments = tuple[Tensor, Tensor]


class CombinedOptimizer:
    """Several optimizers of disjoint parameters, used as one."""

    def __init__(self, *optimizers: torch.optim.Optimizer) -> None:
        self.optimizers = optimizers

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The parameter groups of all optimizers."""
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    @property
    def state(self) -> dict[Tensor, Any]:
        """The state of all optimizers, by parameter."""
        return {parameter: state for optimizer in self.optimizers for parameter, state in optimizer.state.items()}

    def step(self) -> None:
        """Update the parameters of all optimizers."""
        for optimizer in self.optimizers:
            optimizer.step()

    def zero_grad(self) -> None:
        """Drop all gradients."""
        for optimizer in self.optimizers:
            optimizer.zero_grad()


def muon(model: nn.Module, fused: bool) -> torch.optim.Optimizer:
    """Return Muon for the matrices of a `TransformerLM`'s blocks and AdamW for embedding, head and norms.

    Muon's updates are as large as AdamW's (Liu et al. 2025, section 2.2), so one learning rate serves both.
    Raises Skipped if torch has no Muon.
    """
    if not hasattr(torch.optim, "Muon"):
        raise Skipped(f"torch {torch.__version__} has no torch.optim.Muon")
    layers = cast(TransformerLM, model).layers
    matrices = [parameter for parameter in layers.parameters() if parameter.dim() == 2]
    of_muon = set(map(id, matrices))
    others = [parameter for parameter in model.parameters() if id(parameter) not in of_muon]
    found = CombinedOptimizer(
        torch.optim.Muon(matrices, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, fused=True if fused else None),
    )
    return cast(torch.optim.Optimizer, found)


class Bf16MomentsAdamW(torch.optim.Optimizer):
    """AdamW (Loshchilov and Hutter 2019, algorithm 2) with moments in bf16, rounded to nearest.

    Moments are read, updated in fp32 and rounded once per step: 4 bytes of state per parameter instead of 8. On a GPU
    one Triton kernel updates each parameter. Steps are counted on the parameters' device, as CUDA graphs require.
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update the parameters that have a gradient."""
        for group in self.param_groups:
            found = [parameter for parameter in group["params"] if parameter.grad is not None]
            if not found:
                continue
            if "count" not in group:
                group["count"] = torch.zeros((), device=found[0].device)
            group["count"] += 1
            for parameter in found:
                update = _update_in_triton if parameter.device.type == "cuda" else _update
                update(parameter, self._moments(parameter), group)

    def _moments(self, parameter: Tensor) -> Moments:
        state = self.state[parameter]
        if not state:
            names = ("exp_avg", "exp_avg_sq")
            state.update({name: torch.zeros_like(parameter, dtype=torch.bfloat16) for name in names})
        return state["exp_avg"], state["exp_avg_sq"]


def _update_in_triton(parameter: Tensor, moments: Moments, group: dict[str, Any]) -> None:
    from pipeline.model.fused.triton.adamw import update

    (mean, square), (beta1, beta2), count = moments, group["betas"], group["count"]
    update(parameter, mean, square, count, group["lr"], beta1, beta2, group["eps"], group["weight_decay"])


def _update(parameter: Tensor, moments: Moments, group: dict[str, Any]) -> None:
    """Update one parameter with torch's operations."""
    assert parameter.grad is not None  # checked by the caller
    gradient, (beta1, beta2), count = parameter.grad.float(), group["betas"], float(group["count"])
    mean, square = (moment.float() for moment in moments)
    mean.lerp_(gradient, 1 - beta1)
    square.lerp_(gradient.square(), 1 - beta2)
    for moment, updated in zip(moments, (mean, square), strict=True):
        moment.copy_(updated)
    scale = math.sqrt(1 - beta2**count)
    parameter.mul_(1 - group["lr"] * group["weight_decay"])
    parameter.addcdiv_(
        mean.to(parameter.dtype),
        (square.sqrt() / scale + group["eps"]).to(parameter.dtype),
        value=-group["lr"] / (1 - beta1**count),
    )
