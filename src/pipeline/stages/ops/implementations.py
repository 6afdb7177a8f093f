"""The implementations of each operation, as functions of its arguments; for AdamW, as optimizer constructors."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from pipeline.attention.functions import why_not
from pipeline.errors import Skipped
from pipeline.instruments.machine.toolchain import require_compiler
from pipeline.model.fused.functions import AddRMSNorm, Rotary, SwiGLUProduct
from pipeline.model.fused.linear_cross_entropy import linear_cross_entropy
from pipeline.model.fused.operations import Operations, in_triton
from pipeline.model.operations import DIFFERENTIABLE
from pipeline.peers import load
from pipeline.stages.ops.cell import ADAMW, LIGER, Settings

Call = Callable[..., Any]
LIGER_NAMES = {
    "rms_norm": "liger_fused_add_rms_norm",
    "rotary": "liger_rope",
    "swiglu": "liger_swiglu",
    "linear_cross_entropy": "liger_fused_linear_cross_entropy",
}


def build(name: str, operation: str, settings: Settings, device: torch.device) -> Call:
    """Return an implementation of an operation; raises Skipped if this machine lacks what it needs."""
    if name == "compile" and not settings.compiled:
        raise Skipped("the setting compiled is false")
    if name == "compile":
        require_compiler()
    if operation == ADAMW:
        return _optimizer(name)
    if name == "ours":
        if lack := why_not("flash", device):
            raise Skipped(lack.replace("flash attention needs", "Triton's kernels need"))
        return ours(operation, in_triton())
    if name == LIGER:
        if device.type != "cuda":
            raise Skipped("Liger's Triton kernels need a CUDA GPU")
        return _liger(operation)
    plain = DIFFERENTIABLE[operation]
    return torch.compile(plain, dynamic=False) if name == "compile" else plain


def ours(operation: str, operations: Operations) -> Call:
    """Return our implementation, called with the same arguments as the plain one."""

    def loss(x: Any, weight: Any, targets: Any, ignore_index: int) -> Any:
        return linear_cross_entropy(x, weight, targets, operations, ignore_index)

    functions: Mapping[str, Call] = {
        "rms_norm": lambda *arguments: AddRMSNorm.apply(*arguments, operations),
        "rotary": lambda *arguments: Rotary.apply(*arguments, operations),
        "swiglu": lambda *arguments: SwiGLUProduct.apply(*arguments, operations),
        "linear_cross_entropy": loss,
    }
    return functions[operation]


def _liger(operation: str) -> Call:
    function = getattr(load(LIGER, "liger_kernel.transformers.functional"), LIGER_NAMES[operation])
    if operation == "rotary":
        # It takes Hugging Face's tables: (batch, length, head_dim), with the angles repeated for both halves of a head.
        return lambda q, k, cos, sin: function(q, k, *(torch.cat((each, each), -1)[None] for each in (cos, sin)))
    if operation == "linear_cross_entropy":
        return lambda x, weight, targets, ignored: function(x, weight, targets, ignore_index=ignored)
    return function


class CompiledSteps:
    """An optimizer whose step is compiled, by PyTorch's recipe."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.step = torch.compile(optimizer.step, fullgraph=False)


def _optimizer(name: str) -> Call:
    if name == "fused":
        return partial(torch.optim.AdamW, fused=True)
    if name == "compile":
        return lambda *given, **options: CompiledSteps(torch.optim.AdamW(*given, **options))
    return torch.optim.AdamW
