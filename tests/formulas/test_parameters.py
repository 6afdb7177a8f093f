from dataclasses import asdict

import pytest
import torch

from pipeline.formulas.parameters import parameter_bytes, parameter_count
from pipeline.formulas.sizes import SIZES, ModelSize
from pipeline.model import TransformerLM

ODD_SIZE = ModelSize(d_model=24, d_ff=56, num_layers=3, num_heads=2)


def build_model(size, vocab_size=100):
    return TransformerLM(vocab_size=vocab_size, context_length=24, **asdict(size))


@pytest.mark.parametrize("size", [*SIZES.values(), ODD_SIZE])
def test_parameter_count_equals_the_models(size):
    with torch.device("meta"):
        model = build_model(size, vocab_size=10_000)
    assert parameter_count(size, 10_000) == sum(parameter.numel() for parameter in model.parameters())


def test_parameter_bytes_equal_the_tensors():
    assert parameter_bytes(ODD_SIZE, 100) == sum(parameter.nbytes for parameter in build_model(ODD_SIZE).parameters())
