"""The problem of a flash cell: seeded inputs, exact results, and an implementation's errors against them."""

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from pipeline.attention.reference import ExactAttention, exact_attention
from pipeline.instruments.sampling import error_limits
from pipeline.instruments.sampling.error_limits import FINE_EPS, TF32_EPS
from pipeline.instruments.sampling.interleaving import Work
from pipeline.instruments.sampling.side_by_side import Errors, Problem
from pipeline.stages.flash.cell import BOTH_PHASES, PHASES, Cell
from pipeline.stages.flash.implementations import Implementation, refusals_as_skipped

TORCH_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


class AttentionProblem(Problem):
    """Normally distributed q, k, v and output gradient, with the exact results."""

    phases = PHASES
    peers = ("eager", "sdpa", "sdpa_flash", "sdpa_cudnn", "sdpa_efficient")  # PyTorch's own
    calls_all_again = False

    def __init__(self, cell: Cell, device: torch.device) -> None:
        """Allocate the inputs; `draw` fills them."""
        self.cell, self.device, self.dtype = cell, device, TORCH_DTYPES[cell.dtype]
        heads, kv_heads = cell.num_heads, cell.shape.num_kv_heads
        q, k, v, self.output_gradient = (
            torch.empty(cell.batch_size, each, cell.seq_len, cell.head_dim, dtype=self.dtype, device=device)
            for each in (heads, kv_heads, kv_heads, heads)
        )
        self.qkv = (q.requires_grad_(), k.requires_grad_(), v.requires_grad_())
        self._exact: ExactAttention | None = None
        self._by_token: tuple[Tensor, ...] = ()

    @torch.no_grad()
    def draw(self, seed: int) -> None:
        """Refill the same tensors with random numbers, and compute the exact results."""
        generator = torch.Generator(self.device).manual_seed(seed)
        for tensor in (*self.qkv, self.output_gradient):
            tensor.copy_(torch.randn(tensor.shape, generator=generator, device=self.device))
        self._exact = None  # freed before the next one takes as much memory
        self._exact = exact_attention(*self.qkv, self.output_gradient, self.cell.is_causal)
        for tensor, numbers in zip(self._by_token, (*self.qkv, self.output_gradient), strict=False):
            tensor.copy_(numbers.transpose(1, 2))

    @torch.no_grad()
    def change_signs(self) -> None:
        """Change the inputs in place, using no more memory; the exact results no longer match them."""
        q, _k, v = self.qkv
        for tensor in (q, v, self.output_gradient):
            tensor.neg_()

    def works(self, built: Implementation) -> dict[str, Work]:
        """Return each phase as work to time. Each backward sample makes a new graph: none is kept between samples."""
        (q, k, v), output_gradient = self._laid_out(built.by_token)

        def forward(_nothing: None) -> Tensor:
            return built.attend(q, k, v)

        def backward(output: Tensor) -> tuple[Tensor, ...]:
            return torch.autograd.grad(output, (q, k, v), output_gradient)

        works = (
            Work(forward, within=built.within),
            Work(backward, prepare=lambda: forward(None), within=built.within),
            Work(lambda nothing: backward(forward(nothing)), within=built.within),
        )
        return dict(zip(PHASES, works, strict=True))

    def _laid_out(self, by_token: bool) -> tuple[tuple[Tensor, ...], Tensor]:
        """Return q, k and v, and the output's gradient; by_token: as (batch, length, heads, head_dim), contiguous.

        The by-token tensors are copies, made on first use and then kept.
        """
        if not by_token:
            return self.qkv, self.output_gradient
        if not self._by_token:
            *qkv, gradient = (x.detach().transpose(1, 2).contiguous() for x in (*self.qkv, self.output_gradient))
            self._by_token = (*(x.requires_grad_() for x in qkv), gradient)
        return self._by_token[:3], self._by_token[3]

    def errors(self, built: Implementation, phase: str, result: Any) -> Errors:
        """Return relative (L2) and largest absolute errors of the output or each gradient; {} for both phases."""
        assert self._exact is not None  # drawn
        if phase == BOTH_PHASES:
            return {}
        results = {"output": result} if phase == PHASES[0] else dict(zip(("dq", "dk", "dv"), result, strict=True))
        found = {}
        for name, tensor in results.items():
            tensor = tensor.transpose(1, 2) if built.by_token else tensor
            top = (tensor.detach().double() - getattr(self._exact, name)).abs().max().item()
            found[name] = self._exact.relative_error(name, tensor), top
        return found

    def refusals(self, name: str) -> AbstractContextManager:
        """Turn errors with which an implementation refuses the problem into Skipped."""
        return refusals_as_skipped(name)

    def far_off(self, quantity: str, error: tuple[float, float], usual: tuple[float, float] | None) -> str | None:
        """Say which error is NaN or far above that of PyTorch's own; None if none is.

        On an H200, correct implementations had errors of at most 0.36 of those allowed here. Leaving out one row of
        1,024 makes errors 3.5 (relative) and 7 (largest) times as large.
        """
        coarse = self.dtype != torch.float32 or self.device.type == "cuda"  # where products may be in TF32
        eps, rounding = TF32_EPS if coarse else FINE_EPS, 2 * torch.finfo(self.dtype).eps
        beside = "PyTorch's own" if usual else "rounding"
        what = f"{quantity} at length {self.cell.seq_len}"
        return error_limits.far_off(what, error, usual or (rounding, rounding), eps, beside)
