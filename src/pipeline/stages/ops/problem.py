"""The problem that an ops cell measures, and the errors of an implementation's results."""

from collections.abc import Callable
from typing import Any

import torch

from pipeline.formulas.operations import BACKWARD, FORWARD, WHOLE
from pipeline.instruments.sampling import side_by_side
from pipeline.instruments.sampling.interleaving import Work
from pipeline.model import operation_problems
from pipeline.model.operation_problems import Errors, as_tuple
from pipeline.stages.ops.cell import ADAMW, Cell
from pipeline.subjects.operation_check import far_off

TORCH_DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


class OperationProblem(operation_problems.Problem, side_by_side.Problem):
    """A call of the operation; for AdamW, a step."""

    peers = ("eager",)

    def __init__(self, cell: Cell, device: torch.device) -> None:
        """Allocate the inputs; `draw` fills them."""
        super().__init__(cell.op, cell.widths, TORCH_DTYPES[cell.dtype], device)
        self.phases = cell.phases
        self.calls_all_again = cell.op != ADAMW  # AdamW's steps would be compiled again

    def works(self, built: Callable[..., Any]) -> dict[str, Work]:
        """Return each phase as work to time; all tensors are restored before each call."""
        if self.operation == ADAMW:
            return {WHOLE: self._steps(built)}

        def forward(_nothing: None) -> tuple[Any, ...]:
            return as_tuple(built(*self.inputs, *self.constants))

        def backward(outputs: tuple[Any, ...]) -> tuple[Any, ...]:
            weights = [gradient.to(each.dtype) for gradient, each in zip(self.gradients, outputs, strict=True)]
            return torch.autograd.grad(outputs, self.inputs, weights)

        def prepare() -> tuple[Any, ...]:
            self.restore()
            return forward(None)

        return {
            FORWARD: Work(forward, self.restore),
            BACKWARD: Work(backward, prepare),
            WHOLE: Work(lambda nothing: backward(forward(nothing)), self.restore),
        }

    def _steps(self, make: Callable[..., Any]) -> Work:
        for weight, gradient in zip(self.inputs, self.gradients, strict=True):
            weight.grad = gradient
        optimizer = make(list(self.inputs), **operation_problems.ADAMW)

        def step(_nothing: None) -> tuple[Any, ...]:
            optimizer.step()
            return self.inputs

        return Work(step, self.restore)

    def errors(self, _built: Any, phase: str, result: Any) -> side_by_side.Errors:
        """Return the errors of a phase's result: the output's for forward and AdamW, else the gradients'."""
        if self.operation == ADAMW or phase == FORWARD:
            return {"output": self.output_errors(result)}
        return {"gradient": self.gradient_errors(result)}

    def far_off(self, quantity: str, error: tuple[float, float], usual: tuple[float, float] | None) -> str | None:
        """Say how an error is NaN or far above the plain implementation's; return None if it is neither."""
        return far_off(quantity, Errors(*error), usual and Errors(*usual), self)
