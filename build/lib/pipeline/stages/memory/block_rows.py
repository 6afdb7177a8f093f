"""Make the rows about one block: what it saves for its backward pass, and the gradients that this makes."""

from typing import Any

import torch

from pipeline.instruments.memory.saved_tensors import saved_by_operation
from pipeline.model.precision import precision_context
from pipeline.model.step import TrainingStep

Row = dict[str, Any]


def block_rows(step: TrainingStep, d_model: int) -> list[Row]:
    """Run forward and backward of the first block alone; return what it saves, largest first, and its gradients.

    The model's gradients are dropped before and after.
    """
    step.discard()
    block = step.model.get_submodule("layers.0")
    x = torch.randn(*step.tokens.shape, d_model, device=step.tokens.device, requires_grad=True)
    with precision_context(step.precision, x.device.type):
        output, saved = saved_by_operation(block, x)
    output.backward(torch.ones_like(output))
    gradients_bytes = sum(parameter.grad.nbytes for parameter in block.parameters() if parameter.grad is not None)
    step.discard()
    rows: list[Row] = [
        {
            "kind": "block",
            "saved_bytes": sum(tensor.size_bytes for tensor in saved),
            "gradients_bytes": gradients_bytes,
            "input_gradient_bytes": x.nbytes,
        }
    ]
    rows += [
        {
            "kind": "block_saved",
            "rank": rank,
            "size_bytes": tensor.size_bytes,
            "module": tensor.module,
            "operation": tensor.operation,
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
        }
        for rank, tensor in enumerate(sorted(saved, key=lambda one: one.size_bytes, reverse=True), start=1)
    ]
    return [{"status": "ok", **row} for row in rows]
