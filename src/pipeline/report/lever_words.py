"""What the optimizations of a training step are called: rows name them in code, `fused+sdpa`."""

from pipeline.report.section import listing

WORDS = {
    "eager_again": "eager again",
    "fused": "fused AdamW",
    "muon": "Muon",
    "flash": "our flash attention",
    "sdpa": "SDPA",
    "blocks": "our fused blocks",
    "compile": "torch.compile",
    "fp8": "fp8 products",
    "fp8_rowwise": "fp8 products by rows",
    "graph": "a CUDA graph",
    "bf16_moments": "bf16 moments",
    "bf16_weights": "bf16 weights",
    "checkpointing": "checkpoints",
}


def joined(levers: str) -> str:
    """Write a combination for a table: `fused AdamW + SDPA`; `eager` stays."""
    return " + ".join(_words(levers))


def listed(levers: str) -> str:
    """Write a combination for a sentence: `fused AdamW, SDPA and a CUDA graph`."""
    return listing(_words(levers))


def _words(levers: str) -> list[str]:
    return [WORDS.get(name, name) for name in levers.split("+")]
