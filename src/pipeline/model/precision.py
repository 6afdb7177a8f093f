"""Training precisions. Torch is imported only in functions, because the workflow reads the names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

PRECISIONS = ("fp32", "bf16", "tf32")


@contextmanager
def precision_context(precision: str, device_type: str) -> Iterator[None]:
    """Compute in `precision` inside this context; restore the former state after it.

    fp32: matrix products in true fp32. tf32: fp32 tensors, products in TF32 if the hardware has it. bf16: fp32
    parameters with autocast to bf16; use it for the forward pass and the loss, not for the backward pass.
    Raises ValueError if the precision is not one of `PRECISIONS`.
    """
    import torch

    with (
        matmul_precision(precision),
        torch.autocast(device_type, dtype=torch.bfloat16, enabled=precision == "bf16"),
    ):
        yield


@contextmanager
def matmul_precision(precision: str) -> Iterator[None]:
    """Set how fp32 matrices are multiplied, without autocast; restore the former state after it.

    This part of `precision_context` applies to the backward pass too.
    Raises ValueError if the precision is not one of `PRECISIONS`.
    """
    from pipeline.tf32 import float32_products

    if precision not in PRECISIONS:
        raise ValueError(f"precision={precision!r}: must be one of {', '.join(PRECISIONS)}")
    with float32_products(tf32=precision == "tf32"):
        yield
