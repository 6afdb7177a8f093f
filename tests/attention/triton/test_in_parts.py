import pytest
import torch

from pipeline.attention.inputs import traits
from pipeline.attention.triton.in_parts import in_parts_of

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("head_dim", [40, 64])
def test_three_bf16_parts_add_up_to_an_fp32_number_except_its_last_bit(head_dim):
    dense = torch.randn(2, 3, 70, head_dim, device=DEVICE) * torch.logspace(-20, 20, 70, device=DEVICE)[:, None]
    strided = dense.transpose(1, 2).contiguous().transpose(1, 2)
    tensors = (dense, strided, dense[0, :, 5:40], dense[:1, 1])
    for given, parts in zip(tensors, in_parts_of(*map(traits, tensors))(*tensors), strict=True):
        assert parts.dtype == torch.bfloat16
        matrices = given.reshape(-1, *given.shape[-2:])
        assert parts.shape == (3, *matrices.shape)
        torch.testing.assert_close(parts.double().sum(0), matrices.double(), rtol=2**-24, atol=0)
