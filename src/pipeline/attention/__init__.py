"""Interchangeable attention functions by name, and the autograd functions behind two of them."""

from typing import Any

__all__ = [
    "ATTENTION",
    "AttentionFunction",
    "FlashAttentionTiled",
    "FlashAttentionTriton",
    "eager_attention",
    "flash_attention",
    "tiled_attention",
]


# Lazy (PEP 562): a cell with eager attention imports no kernels, so editing a kernel does not make it stale.
def __getattr__(name: str) -> Any:
    if name in ("ATTENTION", "AttentionFunction"):
        from pipeline.attention import functions

        return getattr(functions, name)
    if name == "eager_attention":
        from pipeline.attention import eager

        return eager.eager_attention
    if name in ("FlashAttentionTiled", "tiled_attention"):
        from pipeline.attention import tiled

        return getattr(tiled, name)
    if name in ("FlashAttentionTriton", "flash_attention"):
        from pipeline.attention.triton import autograd

        return getattr(autograd, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
