from dataclasses import asdict
from unittest.mock import Mock

import pytest
import torch

from pipeline.formulas.sizes import SIZES
from pipeline.model import TransformerLM
from pipeline.model.transformer import RotaryEmbedding

from .executed import Executed

VOCAB_SIZE, CONTEXT_LENGTH = 50, 24
NUMBER_OF_PARAMETERS = {"small": 128_625_408, "medium": 423_183_360, "large": 969_411_840}
NUMBER_OF_PARAMETERS |= {"xl": 1_998_235_200, "2.7B": 3_406_809_600, "2.35B": 2_357_814_400}


def build_model(**overrides):
    torch.manual_seed(0)
    widths = {"d_model": 32, "num_layers": 2, "num_heads": 4, "d_ff": 80}
    return TransformerLM(VOCAB_SIZE, CONTEXT_LENGTH, **(widths | overrides))


def random_tokens(seq_len=CONTEXT_LENGTH, batch_size=2):
    return torch.randint(VOCAB_SIZE, (batch_size, seq_len), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(("size_name", "parameters"), NUMBER_OF_PARAMETERS.items())
def test_named_sizes_have_published_parameter_counts_on_the_context_device(size_name, parameters):
    with torch.device("meta"):
        model = TransformerLM(vocab_size=10_000, context_length=256, **asdict(SIZES[size_name]))
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters
    assert {tensor.device.type for tensor in (*model.parameters(), *model.buffers())} == {"meta"}
    assert set(model.state_dict()) == {name for name, _ in model.named_parameters()}


def test_weights_are_drawn_from_a_normal_truncated_at_three_standard_deviations():
    model = build_model(d_model=256, d_ff=768)
    gate, embedding = model.layers[0].feed_forward.gate_proj.weight, model.token_embedding.weight
    for weight, std in ((gate, (2 / (256 + 768)) ** 0.5), (embedding, 1.0)):
        # Truncation at 3 standard deviations reduces a normal's standard deviation to 0.987 of its value.
        assert weight.std().item() == pytest.approx(0.987 * std, rel=0.02)
        assert 2.5 * std < weight.abs().max() <= 3 * std


def test_norms_divide_by_the_root_of_mean_square_plus_epsilon():
    x = torch.full((32,), 0.01)
    norms = [module for module in build_model().modules() if isinstance(module, torch.nn.RMSNorm)]
    assert len(norms) == 2 * 2 + 1
    for norm in norms:
        torch.testing.assert_close(norm(x), x / (0.01**2 + 1e-5) ** 0.5)


def test_logits_depend_only_on_earlier_tokens_of_their_sequence_and_their_order():
    model, tokens = build_model(), random_tokens()
    before = model(tokens)
    changed = tokens.clone()
    changed[:, 10:] = (changed[:, 10:] + 1) % VOCAB_SIZE
    after = model(changed)
    torch.testing.assert_close(after[:, :10], before[:, :10])
    assert not torch.allclose(after[:, 10:], before[:, 10:])
    swapped = tokens[:, [1, 0, *range(2, CONTEXT_LENGTH)]]
    assert not torch.equal(swapped, tokens)
    assert not torch.allclose(model(swapped)[:, -1], before[:, -1], atol=1e-4)
    torch.testing.assert_close(before[:1], model(tokens[:1]))


def test_rope_turns_each_pair_by_position_times_its_frequency():
    pairs = torch.randn(16, 2, dtype=torch.complex64, generator=torch.Generator().manual_seed(0))
    angles = torch.arange(16.0)[:, None] * torch.tensor([1.0, 1 / 100])  # theta^(-2/4)
    turned = pairs * torch.polar(torch.ones(16, 2), angles)
    given, expected = (torch.cat([each.real, each.imag], dim=-1) for each in (pairs, turned))
    torch.testing.assert_close(RotaryEmbedding(head_dim=4, context_length=16)(given), expected)


def test_rope_rounds_low_precision_once():
    rope = RotaryEmbedding(head_dim=32, context_length=128)
    x = torch.randn(128, 32, generator=torch.Generator().manual_seed(0)).bfloat16()
    torch.testing.assert_close(rope(x), rope(x.float()).bfloat16(), rtol=0, atol=0)


def test_queries_and_keys_are_rotated_and_values_are_not():
    attention = Mock(side_effect=lambda q, k, v, is_causal: v)
    one_token_repeated = torch.zeros(1, CONTEXT_LENGTH, dtype=torch.int64)
    build_model(num_layers=1, attention=attention)(one_token_repeated)
    q, k, v, _ = attention.call_args.args
    assert not torch.allclose(q[..., :2, :], q[..., 1:3, :])
    torch.testing.assert_close(v[..., :2, :], v[..., 1:3, :])
    # With one token everywhere, scores depend only on the distance if queries and keys rotate alike.
    scores = q @ k.mT
    torch.testing.assert_close(scores[..., :-1, :-1], scores[..., 1:, 1:])


def test_model_compiles_to_one_graph():
    model, tokens = build_model(), random_tokens()
    # This tests only tracing; test_step.py compares the values of compiled code.
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(tokens), model(tokens))


SELECTIVE = {"checkpoint_every": 1, "checkpointing": "selective"}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"num_heads": 5}, "num_heads=5: must divide d_model=32"),
        ({"num_heads": 32}, "head_dim=1: must be even for rotary positions"),
        ({"attention": "flesh"}, "attention='flesh': must be one of eager"),
        ({"checkpoint_every": -1}, "checkpoint_every=-1: must be 0"),
        ({"checkpoint_every": 1, "checkpointing": "some"}, "checkpointing='some': must be one of segments, recursive"),
        ({"checkpointing": "recursive"}, "checkpoint_every=0: must be 1 or more with checkpointing='recursive'"),
        (SELECTIVE, "attention='eager': must be one of flash, sdpa with checkpointing='selective'"),
    ],
)
def test_bad_settings_are_named_in_one_line(overrides, message):
    with pytest.raises(ValueError, match=rf"^{message}.*\Z"):
        build_model(**overrides)


def test_sequence_beyond_the_context_is_refused():
    with pytest.raises(ValueError, match=r"^seq_len=25: must be at most context_length=24$"):
        build_model()(random_tokens(seq_len=25))


def gradients_of(model):
    model(random_tokens()).square().mean().backward()
    return [parameter.grad for parameter in model.parameters()]


@pytest.mark.parametrize("checkpointing", ["segments", "recursive", "selective"])
@pytest.mark.parametrize("checkpoint_every", [1, 2, 3, 9])
def test_checkpointing_changes_no_gradient(checkpoint_every, checkpointing):
    layout = {"num_layers": 5, "attention": "sdpa"}
    plain = build_model(**layout)
    checkpointed = build_model(**layout, checkpoint_every=checkpoint_every, checkpointing=checkpointing)
    torch.testing.assert_close(gradients_of(checkpointed), gradients_of(plain), rtol=0, atol=0)


@pytest.mark.skipif(torch.cuda.is_available(), reason="where there is a GPU, Triton runs on it alone")
def test_selective_checkpointing_changes_no_gradient_of_flash_attention():
    plain, selective = (build_model(num_layers=1, attention="flash", **each) for each in ({}, SELECTIVE))
    torch.testing.assert_close(gradients_of(selective), gradients_of(plain), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("checkpoints", "expected"),
    [
        ({"checkpoint_every": 2}, [0, 1, 2, 3, 2, 3, 0, 1]),
        # The first part of a half runs for the input of the second.
        ({"checkpoint_every": 1, "checkpointing": "recursive"}, [0, 1, 2, 3, 2, 3, 2, 0, 1, 0]),
    ],
)
def test_checkpointed_blocks_run_again_in_the_backward_pass(checkpoints, expected):
    model, runs = build_model(num_layers=4, **checkpoints), []
    for layer in model.layers:
        layer.register_forward_pre_hook(lambda module, args: runs.append(list(model.layers).index(module)))
    gradients_of(model)
    assert runs == expected


@pytest.mark.parametrize(("checkpointing", "times"), [("segments", 2), ("selective", 1)])
def test_selective_checkpoints_do_not_run_attention_again(checkpointing, times):
    model = build_model(num_layers=3, attention="sdpa", checkpoint_every=1, checkpointing=checkpointing)
    with Executed() as seen:
        gradients_of(model)
    (name,) = [name for name in seen.counts if name.startswith("aten::_scaled_dot_product") and "backward" not in name]
    assert seen.counts[name] == 3 * times
