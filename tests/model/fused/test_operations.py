from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from pipeline.attention.triton.gpu import INTERPRETER
from pipeline.model.fused.triton import cross_entropy as triton_loss
from pipeline.model.fused.triton import rms_norm as triton_norm
from pipeline.model.fused.triton.rms_norm import rms_norm
from pipeline.model.transformer import RotaryEmbedding

from .reference import ALLOWED, DEVICE, error, gradients, normal

EPS = 1e-5
DTYPES = list(ALLOWED)


def exact_norm(x, weight):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * weight


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "width"), [(1, 1), (7, 17), (11, 1000)])
@pytest.mark.parametrize("adds", [False, True])
def test_a_norm_and_its_gradients_are_exact_with_and_without_addends(kernels, adds, rows, width, dtype):
    x, dy, addend, dtotal = (normal(rows, width, dtype=dtype, seed=seed) for seed in range(4))
    weight = normal(width, dtype=dtype, seed=4)
    total, y = kernels.rms_norm(x, weight, EPS, *([addend] if adds else []))
    assert adds or total is x
    assert error(total, x.double() + adds * addend.double()) < ALLOWED[dtype]
    exact, (dx, dweight) = gradients(exact_norm, (total, weight), dy)
    assert error(y, exact) < ALLOWED[dtype]
    found = kernels.rms_norm_backward(dy, total, weight, EPS, *([dtotal] if adds else []))
    assert error(found[1], dweight) < ALLOWED[dtype]
    if width > 1:  # else the norm is a sign, and its gradient cancels out
        assert error(found[0], dx + adds * dtotal.double()) < 2 * ALLOWED[dtype]


def test_a_weights_gradient_sums_the_rows_of_all_programs(kernels, monkeypatch):
    # 80 programs, whose sums are added in two blocks: most take five rows, some four.
    monkeypatch.setattr(triton_norm, "gpu_of", lambda _device: replace(INTERPRETER, multiprocessors=40))
    x, dy = (normal(397, 3, seed=seed) for seed in (0, 1))
    weight = normal(3, seed=2)
    _, (_, dweight) = gradients(exact_norm, (x, weight), dy)
    assert error(kernels.rms_norm_backward(dy, x, weight, EPS)[1], dweight) < 1e-5


@pytest.mark.parametrize(
    ("rows", "width", "tensors", "grid"),
    [(16_384, 4096, 3, (132, 3)), (4096, 2560, 3, (132, 5)), (4096, 1024, 3, (264, 5)), (100, 4096, 3, (25, 3))],
)
def test_an_h200_has_as_much_under_way_as_was_fastest(rows, width, tensors, grid):
    h200 = replace(INTERPRETER, multiprocessors=132, shared_bytes=227 * 1024)
    assert triton_norm._backward_grid(rows, width, 2, tensors, h200) == grid


def test_a_row_wider_than_a_block_is_refused():
    x = torch.empty(1, 65_537, device=DEVICE)
    with pytest.raises(ValueError, match="width must be at most 65536, got 65537"):
        rms_norm(x, x[0], EPS)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1), (3, 683), (5, 2048)])
@pytest.mark.parametrize("in_place", [False, True])
def test_swiglu_and_its_gradients_are_exact(kernels, in_place, shape, dtype):
    gate, up, dh = (normal(*shape, dtype=dtype, seed=seed) for seed in range(3))
    h, (dgate, dup) = gradients(lambda gate, up: functional.silu(gate) * up, (gate, up), dh)
    assert error(kernels.swiglu(gate, up), h) < ALLOWED[dtype]
    untouched = gate.clone(), up.clone(), dh.clone()
    _, *alone = kernels.swiglu_backward(dh, gate, up, product=False)
    assert torch.equal(dh, untouched[2])  # without the product
    found = kernels.swiglu_backward(dh, gate, up, in_place)
    assert all(map(torch.equal, alone, found[1:]))
    assert in_place or (torch.equal(gate, untouched[0]) and torch.equal(up, untouched[1]))
    for tensor, exact in zip(found, (h, dgate, dup), strict=True):
        assert error(tensor, exact) < 2 * ALLOWED[dtype]


# Ways to lay out (batch, tokens, heads, head_dim) in memory; attention leaves its gradients in the second.
LAYOUTS = {
    "tokens": lambda x: x,
    "heads": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "columns apart": lambda x: torch.stack((x, x), -1)[..., 0],
    "one for all": lambda x: x[:1].expand_as(x),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "layouts", [("tokens", "tokens"), ("heads", "heads"), ("tokens", "heads"), ("columns apart", "one for all")]
)
@pytest.mark.parametrize(("heads", "key_heads", "head_dim"), [(1, 1, 2), (3, 3, 10), (4, 2, 32), (32, 8, 128)])
def test_rotation_matches_the_models_and_rotating_back_undoes_it(kernels, heads, key_heads, head_dim, layouts, dtype):
    rope = RotaryEmbedding(head_dim, context_length=9).to(DEVICE)
    given = [normal(2, 7, count, head_dim, dtype=dtype, seed=count) for count in (heads, key_heads)]
    given = [LAYOUTS[layout](each) for layout, each in zip(layouts, given, strict=True)]
    exact = [rope.double()(each.double().transpose(1, 2)).transpose(1, 2) for each in given]
    cos, sin = rope.cos.float(), rope.sin.float()
    rotated = kernels.rotate(*given, cos, sin)
    back = kernels.rotate(*rotated, cos, sin, back=True)
    for each in range(2):
        assert error(rotated[each], exact[each]) < ALLOWED[dtype]
        assert error(back[each], given[each].double()) < 2 * ALLOWED[dtype]


@pytest.mark.parametrize("shape", [(2, 5, 3, 8), (1, 4, 3, 8), (2, 4, 3, 6)])
def test_queries_and_keys_of_other_tokens_or_head_dim_are_not_rotated_together(kernels, shape):
    tables = torch.ones(9, 4, device=DEVICE)
    with pytest.raises(ValueError, match=rf"differ in heads alone, got shapes \(2, 4, 3, 8\) and .*{shape[3]}\)"):
        kernels.rotate(normal(2, 4, 3, 8), normal(*shape), tables, tables)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocab_size", [1, 33, 1000, 20_000])
def test_cross_entropy_overwrites_the_logits_with_their_gradient(kernels, vocab_size, dtype):
    logits = 3 * normal(4, vocab_size, dtype=dtype)
    targets = torch.tensor([0, vocab_size - 1, -7, vocab_size // 2], device=DEVICE)
    losses, scale = torch.empty(4, device=DEVICE), torch.tensor(0.25, device=DEVICE)

    def loss(logits):
        return functional.cross_entropy(logits, targets, reduction="none", ignore_index=-7)

    exact, (dlogits,) = gradients(loss, (logits,), torch.full((4,), 0.25, device=DEVICE))
    untouched = logits.clone()
    for scaled in ((), (scale,)):
        torch.testing.assert_close(logits, untouched, rtol=0, atol=0)
        kernels.cross_entropy(logits, targets, -7, losses.fill_(torch.nan), *scaled)
        torch.testing.assert_close(losses.double(), exact, rtol=1e-5, atol=1e-6)
    if vocab_size > 1:
        assert error(logits, dlogits) < ALLOWED[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("factor", [1.0, 1 / 3])
def test_scale_multiplies_a_whole_tensor_in_place(kernels, factor, dtype, monkeypatch):
    monkeypatch.setattr(triton_loss, "SCALING_PROGRAMS", 2)
    tensor = normal(3, 4097, dtype=dtype)
    exact = factor * tensor.double()
    kernels.scale(tensor, torch.tensor(factor, device=DEVICE))
    assert error(tensor, exact) < ALLOWED[dtype]


def test_logits_far_apart_do_not_overflow(kernels):
    logits = torch.tensor([[-3e38, 3e38, 0.0], [1e4, 1e4, -1e4]], device=DEVICE)
    losses = torch.empty(2, device=DEVICE)
    kernels.cross_entropy(logits, torch.tensor([1, 0], device=DEVICE), -100, losses, torch.tensor(1.0, device=DEVICE))
    torch.testing.assert_close(losses.cpu(), torch.tensor([0.0, 0.6931472]))
    torch.testing.assert_close(logits.cpu(), torch.tensor([[0.0, 0.0, 0.0], [-0.5, 0.5, 0.0]]))
