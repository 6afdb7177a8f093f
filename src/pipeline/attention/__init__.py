"""Attention functions that can stand in for each other, by name, and the autograd functions behind two of them."""

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


# Lazy (PEP 562): the workflow reads `pipeline.formulas.attention` and must not wait for torch.
def __getattr__(name: str) -> Any:
    if name in __all__:
        from pipeline.attention import functions

        return getattr(functions, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
