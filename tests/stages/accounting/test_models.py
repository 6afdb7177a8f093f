from dataclasses import asdict

import torch

from pipeline.model import TransformerLM
from pipeline.stages.accounting.models import model_named


def test_a_block_of_the_transformer_has_the_weights_of_its_feed_forward_network():
    model = model_named("small", vocab_size=100)
    with torch.device("meta"):
        layer = TransformerLM(vocab_size=100, context_length=16, **asdict(model.size)).layers[0]
    weights = sum(weight.numel() for weight in layer.feed_forward.parameters())
    assert weights == model.block.weights == model.block.matrices * model.block.d_model * model.block.d_ff
