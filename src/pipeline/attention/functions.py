"""The registry of attention functions; see `pipeline.attention`."""

from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

# attention(q, k, v, is_causal) -> output.
# Shapes: q and output are (..., n_queries, head_dim), k and v are (..., n_keys, head_dim).
AttentionFunction = Callable[[Tensor, Tensor, Tensor, bool], Tensor]
NAMES = ("eager", "tiled", "flash", "sdpa")


def why_not(name: str, device: torch.device) -> str | None:
    """Return one line on why a device cannot run an attention function, or None if it can.

    Triton's interpreter does not count: flash attention needs a GPU.
    """
    if name != "flash":
        return None
    if device.type != "cuda":
        return "flash attention needs a CUDA GPU"
    from pipeline.attention.triton.gpu import gpu_of

    return gpu_of(device).why_refused


class _Functions(Mapping[str, AttentionFunction]):
    """Attention functions by name, each imported on first use."""

    def __getitem__(self, name: str) -> AttentionFunction:
        if name == "eager":
            from pipeline.attention.eager import eager_attention

            return eager_attention
        if name == "tiled":
            from pipeline.attention.tiled import tiled_attention

            return tiled_attention
        if name == "flash":
            from pipeline.attention.triton.autograd import flash_attention

            return flash_attention
        if name == "sdpa":
            from pipeline.attention.sdpa import sdpa_attention

            return sdpa_attention
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(NAMES)

    def __len__(self) -> int:
        return len(NAMES)

    def __contains__(self, name: object) -> bool:
        return name in NAMES  # Mapping's default would import the function


ATTENTION: Mapping[str, AttentionFunction] = _Functions()
