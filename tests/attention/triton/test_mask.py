import itertools

import pytest
import torch

from pipeline.attention.triton.mask import CAUSAL, FULL, band_of

from ..reference import MASKS, seen_by_formula


@pytest.mark.parametrize("mask", MASKS)
def test_a_band_shows_the_same_keys_as_the_mask(mask):
    n_queries, n_keys, is_causal, window = mask
    band = band_of(is_causal, window, n_queries, n_keys)
    queries, keys = torch.arange(n_queries)[:, None], torch.arange(n_keys)[None, :]
    seen = torch.ones(n_queries, n_keys, dtype=torch.bool)
    if band.start is not None:
        seen &= keys >= queries + band.start
    if band.end is not None:
        seen &= keys < queries + band.end
    assert torch.equal(seen, seen_by_formula(n_queries, n_keys, is_causal, window))
    assert band.shows_first_key <= seen[:, 0].all().item()
    for first in range(0, n_queries, 16):
        assert seen[first : first + 16].any(0).sum().item() <= band.keys_in_reach(n_keys, 16)


def test_bounds_that_hide_nothing_are_none():
    for n_keys, is_causal in itertools.product((1, 50), (True, "bottom_right")):
        assert band_of("bottom_right", None, 1, n_keys) == FULL  # decoding
        assert band_of(is_causal, 1000, 50, 50) == CAUSAL
    assert band_of(False, 1000, 50, 60) == FULL
