from dataclasses import replace

import pytest
import torch

from pipeline.formulas.flops import forward_flops
from pipeline.formulas.parameters import parameter_count
from pipeline.formulas.sizes import SIZES, ModelSize, OwnSize
from pipeline.model.step import build_training_step

OWN = OwnSize(d_model=64, d_ff=96, num_layers=2, num_heads=8, num_kv_heads=2, vocab_size=120)


def test_a_name_says_the_numbers_and_the_size_is_found_by_it():
    name = OWN.name("qwen_0.5B")
    assert name == "qwen_0.5B-d64-f96-l2-h8-kv2-v120"
    assert name in SIZES
    assert SIZES[name] == OWN
    assert name not in list(SIZES)
    assert SIZES["small"].num_layers == 12


def test_heads_of_another_width_are_part_of_the_name():
    name = "qwen3-d1024-f3072-l28-h16-kv8-v151936-hd128"
    assert SIZES[name] == OwnSize(1024, 3072, 28, 16, 8, 151936, head_dim=128)
    assert (SIZES[name].attention_width, SIZES[name].kv_width) == (2048, 1024)
    assert SIZES[name].name("qwen3") == name
    assert "mine-d66-f96-l2-h4-kv2-v0-hd16" in SIZES  # 4 does not divide 66, and need not


@pytest.mark.parametrize("more", [{"head_dim": 16}, {"tie_embeddings": True}, {"without": ("bias", "qk_norm")}])
def test_all_that_a_size_says_is_part_of_its_name(more):
    whole = replace(OWN, head_dim=16, tie_embeddings=True, without=("bias", "qk_norm"))
    for size in (replace(OWN, **more), whole):
        assert size.name("mine") in SIZES
        assert SIZES[size.name("mine")] == size


@pytest.mark.parametrize(
    "name",
    [
        "mine",
        "mine-d64-f96-l2-h8-kv2-v120-hd8",  # as without it: one spelling
        "mine-d64-f96-l2-h8-kv2-v120-hd7",
        "mine-d64-f96-l2-h8-kv2-v120-hd0",
        "mine-d64-f96-l2-h8",
        "mine-d64-f96-l2-h7-kv1-v0",  # 7 does not divide 64
        "mine-d64-f96-l2-h8-kv3-v0",  # 3 does not divide 8
        "mine-D64-f96-l2-h8-kv2-v120",
        "mine-d064-f96-l2-h8-kv2-v120",
        "mine-d72-f96-l2-h8-kv8-v0",  # an odd head_dim
        "mine-d64-f0-l2-h8-kv8-v0",
        "mine-d64-f96-l2-h8-kv2-v120\n",
        "mine-d64-f96-l2-h8-kv2-v120-tied-hd16",
        "mine-d64-f96-l2-h8-kv2-v120-tied-tied",
        "mine-d64-f96-l2-h8-kv2-v120-without",
        "mine-d64-f96-l2-h8-kv2-v120-without.heads",
        "mine-d64-f96-l2-h8-kv2-v120-without.qk_norm.bias",
        "mine-d64-f96-l2-h8-kv2-v120-without.bias.bias",
        "../mine-d64-f96-l2-h8-kv2-v120",
        3,
    ],
)
def test_what_is_no_size_is_not_one(name):
    assert name not in SIZES


def test_an_unknown_name_is_a_missing_key():
    with pytest.raises(KeyError):
        SIZES["mine-d064-f96-l2-h8-kv2-v120"]


@pytest.mark.parametrize("size", [OWN, replace(OWN, head_dim=12), replace(OWN, tie_embeddings=True)])
def test_parameters_are_those_of_the_model_whatever_vocabulary_the_stage_has(size):
    step = build_training_step(size, vocab_size=7, context_length=8, batch_size=2, precision="fp32", device="cpu")
    assert parameter_count(size, 7) == sum(parameter.numel() for parameter in step.model.parameters())
    assert step.tokens.max() >= 7


def test_shared_keys_and_values_save_their_projections_work_and_nothing_else():
    whole = ModelSize(OWN.d_model, OWN.d_ff, OWN.num_layers, OWN.num_heads)
    saved = forward_flops(whole, 120, batch_size=3, seq_len=16) - forward_flops(OWN, 120, batch_size=3, seq_len=16)
    tokens, less = 3 * 16, whole.d_model - OWN.kv_width
    assert saved == OWN.num_layers * 2 * tokens * 2 * OWN.d_model * less


def test_a_group_of_heads_reads_one_head_of_keys_and_values():
    """With keys and values repeated by hand, the model with a head for each computes the same."""
    shared = build_training_step(OWN, vocab_size=7, context_length=8, batch_size=2, precision="fp32", device="cpu")
    size = ModelSize(OWN.d_model, OWN.d_ff, OWN.num_layers, OWN.num_heads)
    whole = build_training_step(size, vocab_size=120, context_length=8, batch_size=2, precision="fp32", device="cpu")
    state = shared.model.state_dict()
    for name, weight in state.items():
        if "k_proj" in name or "v_proj" in name:
            heads = weight.unflatten(0, (OWN.num_kv_heads, OWN.head_dim))
            state[name] = heads.repeat_interleave(OWN.num_heads // OWN.num_kv_heads, dim=0).flatten(0, 1)
    whole.model.load_state_dict(state)
    torch.testing.assert_close(shared.model(shared.tokens), whole.model(shared.tokens))
