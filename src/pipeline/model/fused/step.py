"""A training step whose model makes few passes over memory, with head and loss fused."""

from typing import cast

import torch
from torch import Tensor, nn
from torch.func import functional_call

from pipeline.attention import ATTENTION
from pipeline.formulas.fused_step import LEVELS
from pipeline.model.fused.language_model import FusedLM
from pipeline.model.fused.operations import best_operations
from pipeline.model.precision import matmul_precision
from pipeline.model.step import TrainingStep
from pipeline.model.transformer import TransformerLM
from pipeline.ranges import span


class FusedStep(TrainingStep):
    """A `TrainingStep` whose model maps tokens and targets to the loss, and needs no autocast."""

    def forward(self) -> Tensor:
        """Compute the mean cross-entropy in nats; return the loss, a scalar."""
        self._loss = None  # free the graph of a forward pass without backward before building the next
        with span("forward"), matmul_precision(self.precision):
            self._loss = self.model(self.tokens, self.targets)
        return self._loss


class CastWeights(nn.Module):
    """Call a module with its parameters cast to a dtype once per call; they get gradients in their own dtype."""

    def __init__(self, module: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.module, self.dtype = module, dtype

    def forward(self, *inputs: Tensor) -> Tensor:
        """Call the module."""
        weights = {name: parameter.to(self.dtype) for name, parameter in self.module.named_parameters()}
        return functional_call(self.module, weights, inputs)


def fused_step(step: TrainingStep, attention: str, dtype: torch.dtype) -> FusedStep:
    """Return the step of a `TransformerLM` with its blocks, head and loss fused, computed in a dtype.

    Weights, optimizer and batch are those of the given step. attention: a name in `pipeline.attention.ATTENTION`. Every
    block keeps everything that its backward pass needs.
    """
    model, device = cast(TransformerLM, step.model), step.tokens.device
    levels = [LEVELS[-1]] * len(model.layers)
    fused = FusedLM(model, best_operations(device), ATTENTION[attention], levels)
    return FusedStep(CastWeights(fused, dtype), step.optimizer, step.tokens, step.targets, step.precision)
