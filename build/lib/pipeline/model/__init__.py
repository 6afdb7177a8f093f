"""The subject: a transformer language model, its sizes, and one training step."""

from typing import Any

__all__ = ["TransformerLM"]


# Lazy (PEP 562): the workflow reads `pipeline.formulas.sizes` and must not wait for torch.
def __getattr__(name: str) -> Any:
    if name == "TransformerLM":
        from pipeline.model.transformer import TransformerLM

        return TransformerLM
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
