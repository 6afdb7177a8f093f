import functools
import itertools
import math

import pytest
import torch

from .reference import assert_fp32_is_exact, assert_rounded_at_most, random_inputs, uncancelled_inputs


def attention(q, k, v, is_causal, *, diagonal=0, scale=1.0, dropped=slice(0, 0), sums=torch.float32):
    """Compute the plain formula in fp32 and round the result; with the defaults it is correct.

    `diagonal`: how many keys past its own a query sees; `dropped`: keys that no query sees; `sums`: the dtype in which
    the output is summed, 16 keys at a time.
    """
    queries, keys, values = (tensor.float() for tensor in (q, k, v))
    scores = queries @ keys.mT * (scale / math.sqrt(q.shape[-1]))
    hidden = torch.zeros(scores.shape[-2:], dtype=torch.bool)
    if is_causal:
        hidden |= torch.ones_like(hidden).triu(1 + diagonal)
    hidden[:, dropped] = True
    hidden[:, 0] = False  # every query sees something
    weights = torch.softmax(scores.masked_fill(hidden, -math.inf), dim=-1)
    output = torch.zeros_like(queries, dtype=sums)
    for start in range(0, k.shape[-2], 16):
        tile = slice(start, start + 16)
        output = (output + weights[..., tile] @ values[..., tile, :]).to(sums)
    return output.to(q.dtype)


# (roundings, dtype). Roundings: None for the bound on norms, 1 if only results are rounded, 2 if weights are too.
BOUNDS = [(None, torch.float32), (1, torch.float32)]
BOUNDS += itertools.product((1, 2), (torch.bfloat16, torch.float16))


@pytest.mark.parametrize(("roundings", "dtype"), BOUNDS)
def test_every_bound_accepts_the_plain_formula_in_fp32_and_rejects_wrong_ones(roundings, dtype):
    within = functools.partial(assert_rounded_at_most, roundings) if roundings else assert_fp32_is_exact
    for n_queries, n_keys in [(1, 1), (239, 1), (17, 17), (113, 203), (203, 113)]:
        for inputs, is_causal in ((random_inputs, True), (uncancelled_inputs, False)):
            within(attention, *inputs((2, 3, n_queries, 16), n_keys, dtype), is_causal)
    for n_queries, n_keys in [(17, 17), (113, 203)]:
        inputs = random_inputs((2, 3, n_queries, 16), n_keys, dtype)
        for wrong in ({"diagonal": 1}, {"diagonal": -1}, {"dropped": slice(16, 32)}, {"scale": 1.01}):
            with pytest.raises(AssertionError):
                within(functools.partial(attention, **wrong), *inputs, True)
    inputs = uncancelled_inputs((2, 3, 512, 16), 512, dtype)
    with pytest.raises(AssertionError):
        within(functools.partial(attention, sums=torch.bfloat16), *inputs, False)
