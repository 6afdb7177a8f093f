"""The model that is measured: a transformer language model and its training step."""

from typing import Any

__all__ = ["TransformerLM"]


# Lazy (PEP 562): the workflow reads `pipeline.model.precision` and must not wait for torch.
def __getattr__(name: str) -> Any:
    if name == "TransformerLM":
        from pipeline.model.transformer import TransformerLM

        return TransformerLM
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
