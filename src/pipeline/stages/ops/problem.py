"""The problem of an ops cell, and how right an implementation is with it."""

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch

from pipeline.formulas.operations import BACKWARD, FORWARD, WHOLE
from pipeline.instruments.sampling.interleaving import Work
from pipeline.instruments.sampling.side_by_side import Errors, Problem
from pipeline.instruments.sampling.trying import peer_errors_as_skipped
from pipeline.model import operation_problems
from pipeline.stages.ops.cell import ADAMW, Cell
from pipeline.subjects.operation_check import far_off

TORCH_DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


class OperationProblem(Problem):
    """A call of the operation; of AdamW, a step."""

    def __init__(self, cell: Cell, device: torch.device) -> None:
        """Take the memory of the inputs; `draw` fills them."""
        self.phases, self.device = cell.phases, device
        self.numbers = operation_problems.Problem(cell.op, cell.widths, TORCH_DTYPES[cell.dtype], device)

    def draw(self, seed: int) -> None:
        """Put other numbers into the same tensors."""
        self.numbers.draw(seed)

    def change_signs(self) -> None:
        """Make other numbers of those that there are, for the next call."""
        self.numbers.change_signs()

    def works(self, built: Callable[..., Any]) -> dict[str, Work]:
        """Return each phase as work to time; before each call all tensors get their numbers back."""
        numbers = self.numbers
        if numbers.operation == ADAMW:
            return {WHOLE: self._steps(built)}

        def forward(_nothing: None) -> tuple[Any, ...]:
            return operation_problems.as_tuple(built(*numbers.inputs, *numbers.constants))

        def backward(outputs: tuple[Any, ...]) -> tuple[Any, ...]:
            weights = [gradient.to(each.dtype) for gradient, each in zip(numbers.gradients, outputs, strict=True)]
            return torch.autograd.grad(outputs, numbers.inputs, weights)

        def prepare() -> tuple[Any, ...]:
            numbers.restore()
            return forward(None)

        return {
            FORWARD: Work(forward, numbers.restore),
            BACKWARD: Work(backward, prepare),
            WHOLE: Work(lambda nothing: backward(forward(nothing)), numbers.restore),
        }

    def _steps(self, make: Callable[..., Any]) -> Work:
        for weight, gradient in zip(self.numbers.inputs, self.numbers.gradients, strict=True):
            weight.grad = gradient
        optimizer = make(list(self.numbers.inputs), **operation_problems.ADAMW)

        def step(_nothing: None) -> tuple[Any, ...]:
            optimizer.step()
            return self.numbers.inputs

        return Work(step, self.numbers.restore)

    def errors(self, _built: Any, phase: str, result: Any) -> Errors:
        """Return the errors of what a phase gave; of both phases those of the gradients, as they are compared."""
        if self.numbers.operation == ADAMW or phase == FORWARD:
            return {"output": self.numbers.output_errors(result)}
        return {"gradient": self.numbers.gradient_errors(result)}

    def refusals(self, name: str) -> AbstractContextManager:
        """Turn whatever a peer raises into Skipped."""
        return peer_errors_as_skipped(name)

    def judged(self, names: Collection[str], _own: Collection[str]) -> Collection[str]:
        """Judge all."""
        return names

    def called_again(self, names: Collection[str], own: Collection[str]) -> Collection[str]:
        """Call all again; of optimizers, whose steps would be compiled anew, the user's own."""
        return [name for name in names if self.numbers.operation != ADAMW or name in (*own, "eager")]

    def usual(self, errors: Mapping[str, Errors]) -> Errors:
        """Return the errors of the plain way."""
        return errors.get("eager", {})

    def far_off(self, quantity: str, error: tuple[float, float], usual: tuple[float, float] | None) -> str | None:
        """Say how an error is far above that of the plain way, or NaN; None where it is not."""
        return far_off(quantity, error, usual, self.numbers)
