from unittest.mock import Mock

import pytest
import torch

from pipeline.model import float8
from pipeline.model.transformer import TransformerLM


@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise"])
def test_the_recipe_converts_only_the_blocks(monkeypatch, recipe):
    peer = Mock()
    peer.Float8LinearConfig.from_recipe_name = lambda name: name
    monkeypatch.setattr(float8, "load", lambda _name, _module: peer)
    model = TransformerLM(50, 8, d_model=16, num_layers=2, num_heads=2, d_ff=32)
    float8.convert_blocks(model, recipe)
    peer.convert_to_float8_training.assert_called_once_with(model.layers, config=recipe)


@pytest.mark.gpu
def test_torchao_converts_the_linear_layers_of_blocks_and_keeps_their_weights():
    pytest.importorskip("torchao")
    model = TransformerLM(64, 16, d_model=32, num_layers=2, num_heads=2, d_ff=64)
    weights = {id(each) for each in model.parameters()}
    float8.convert_blocks(model, "tensorwise")
    linear = [type(each).__name__ for each in model.modules() if isinstance(each, torch.nn.Linear)]
    assert (linear.count("Float8Linear"), type(model.lm_head).__name__) == (14, "Linear")
    assert {id(each) for each in model.parameters()} == weights
