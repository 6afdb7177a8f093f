from dataclasses import replace

import pytest
import torch

from pipeline.formulas.parameters import parameter_bytes, parameter_count
from pipeline.formulas.sizes import SIZES

from .models import GROUPED, ODD_SIZE, build_model

OWN = [GROUPED, replace(GROUPED, head_dim=12), replace(GROUPED, tie_embeddings=True)]


@pytest.mark.parametrize("size", [*SIZES.values(), ODD_SIZE, *OWN])
def test_parameter_count_and_bytes_equal_the_models(size):
    with torch.device("meta"):
        parameters = list(build_model(size, vocab_size=10_000).parameters())
    assert parameter_count(size, 10_000) == sum(parameter.numel() for parameter in parameters)
    assert parameter_bytes(size, 10_000) == sum(parameter.nbytes for parameter in parameters)
