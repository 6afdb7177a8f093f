from dataclasses import replace

import pytest
import torch

from pipeline.formulas.sizes import SIZES, ModelSize, OwnSize
from pipeline.model.step import build_training_step

from .models import GROUPED

NAME = "mine-d64-f96-l2-h8-kv2-v120"
WITHOUT = replace(GROUPED, without=("bias", "qk_norm"))


@pytest.mark.parametrize(
    ("size", "name"),
    [
        (GROUPED, "qwen_0.5B-d64-f96-l2-h8-kv2-v120"),
        (OwnSize(1024, 3072, 28, 16, 8, 151936, head_dim=128), "qwen3-d1024-f3072-l28-h16-kv8-v151936-hd128"),
        (OwnSize(66, 96, 2, 4, 2, head_dim=16), "mine-d66-f96-l2-h4-kv2-v0-hd16"),  # 4 does not divide 66, and need not
        (replace(GROUPED, tie_embeddings=True), f"{NAME}-tied"),
        (WITHOUT, f"{NAME}-without.bias.qk_norm"),
        (replace(WITHOUT, head_dim=16, tie_embeddings=True), f"{NAME}-hd16-tied-without.bias.qk_norm"),
    ],
)
def test_a_name_spells_out_the_size_and_looks_it_up(size, name):
    assert size.name(name.partition("-")[0]) == name
    assert name in SIZES
    assert SIZES[name] == size
    assert name not in list(SIZES)
    assert (size.attention_width, size.kv_width) == (size.head_dim * size.num_heads, size.head_dim * size.num_kv_heads)


@pytest.mark.parametrize(
    "name",
    [
        *("mine", "mine-d64-f96-l2-h8", f"../{NAME}", f"{NAME}\n", 3),
        *("mine-D64-f96-l2-h8-kv2-v120", "mine-d064-f96-l2-h8-kv2-v120"),
        "mine-d64-f96-l2-h7-kv1-v0",  # 7 does not divide 64
        "mine-d64-f96-l2-h8-kv3-v0",  # 3 does not divide 8
        "mine-d72-f96-l2-h8-kv8-v0",  # an odd head_dim
        "mine-d64-f0-l2-h8-kv8-v0",
        f"{NAME}-hd8",  # the default head_dim must not be spelled out
        *(f"{NAME}-{more}" for more in ("hd7", "hd0", "tied-hd16", "tied-tied")),
        *(f"{NAME}-without{words}" for words in ("", ".heads", ".qk_norm.bias", ".bias.bias")),
    ],
)
def test_invalid_names_are_not_sizes(name):
    assert name not in SIZES
    assert SIZES.get("mine-d064-f96-l2-h8-kv2-v120") is None


def test_a_group_of_query_heads_shares_one_key_value_head():
    """A model with a key/value head per query head computes the same if keys and values are repeated by hand."""
    shared = build_training_step(GROUPED, vocab_size=7, context_length=8, batch_size=2, precision="fp32", device="cpu")
    size = ModelSize(d_model=64, d_ff=96, num_layers=2, num_heads=8)
    whole = build_training_step(size, vocab_size=120, context_length=8, batch_size=2, precision="fp32", device="cpu")
    state = shared.model.state_dict()
    for name, weight in state.items():
        if "k_proj" in name or "v_proj" in name:
            state[name] = weight.unflatten(0, (2, 8)).repeat_interleave(4, dim=0).flatten(0, 1)
    whole.model.load_state_dict(state)
    assert shared.tokens.max() >= 7  # the size's own vocabulary is used
    torch.testing.assert_close(shared.model(shared.tokens), whole.model(shared.tokens))
