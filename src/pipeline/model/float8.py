"""Compute the matrix products of a model's blocks in fp8, with torchao."""

import torch

from pipeline.errors import Skipped
from pipeline.model.transformer import TransformerLM
from pipeline.peers import load

# The lowest compute capability whose tensor cores multiply fp8 with one scale per tensor, or per row.
LEAST_CAPABILITY = {"tensorwise": (8, 9), "rowwise": (9, 0)}


def require_float8(recipe: str, device: torch.device) -> None:
    """Raise Skipped if a device does not support a recipe's fp8 products, or torchao is not installed."""
    least = LEAST_CAPABILITY[recipe]
    if device.type != "cuda" or (torch.version.hip is None and torch.cuda.get_device_capability(device) < least):
        raise Skipped(f"fp8 products ({recipe}) need a GPU of compute capability {least[0]}.{least[1]}")
    load("torchao", "torchao.float8")


def convert_blocks(model: TransformerLM, recipe: str) -> None:
    """Make the linear layers of all blocks compute all three products in fp8; compile the blocks after that.

    recipe: a key of LEAST_CAPABILITY. Embedding, norms, attention and head do not change, nor do the weights, which are
    cast in every step. Raises Skipped as `pipeline.peers.load` does.
    """
    float8 = load("torchao", "torchao.float8")
    config = float8.Float8LinearConfig.from_recipe_name(recipe)
    float8.convert_to_float8_training(model.layers, config=config)
