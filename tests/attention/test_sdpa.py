import torch

from pipeline.attention import ATTENTION

from .reference import errors


def test_it_is_causal_attention_and_follows_autocast():
    q, k, v = torch.randn(3, 1, 2, 20, 16, generator=torch.Generator().manual_seed(0))
    for is_causal in (True, False):
        torch.testing.assert_close(ATTENTION["sdpa"](q, k, v, is_causal), ATTENTION["eager"](q, k, v, is_causal))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = ATTENTION["sdpa"](q, k, v, True)
    assert output.dtype == torch.bfloat16
    assert errors([output], [ATTENTION["eager"](q.double(), k.double(), v.double(), True)]) < 0.05
