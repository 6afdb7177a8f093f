import math

import pytest
import torch
from torch.nn import functional

from pipeline.compat.torch_private import TorchDispatchMode
from pipeline.model.fused.linear_cross_entropy import chunk_rows, linear_cross_entropy
from pipeline.model.fused.operations import in_triton

from .reference import ALLOWED, DEVICE, error, gradients, normal

TOKENS, WIDTH, VOCAB = (3, 7), 16, 301


def inputs(dtype=torch.float32):
    x, weight = normal(*TOKENS, WIDTH, dtype=dtype), normal(VOCAB, WIDTH, dtype=dtype, seed=1) / 5
    targets = torch.randint(VOCAB, TOKENS, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    targets[0, 2:5] = -100
    return x, weight, targets


def exact(x, weight, targets, upstream=1.0):
    def loss(x, weight):
        return functional.cross_entropy((x @ weight.T).flatten(0, -2), targets.flatten())

    return gradients(loss, (x, weight), torch.tensor(upstream, device=DEVICE))


@pytest.mark.parametrize(("chunk", "upstream"), [(1, 1.0), (8, 1 / 3), (21, 1.0), (4096, 1 / 3)])
@pytest.mark.parametrize("dtype", list(ALLOWED))
def test_loss_and_gradients_are_exact_for_any_chunk_size(kernels, dtype, chunk, upstream):
    x, weight, targets = inputs(dtype)
    loss, (dx, dweight) = exact(x, weight, targets, upstream)
    x.requires_grad_(), weight.requires_grad_()
    found = linear_cross_entropy(x, weight, targets, kernels, chunk=chunk)
    (upstream * found).backward()
    assert (found.dtype, x.grad.dtype, weight.grad.dtype) == (torch.float32, dtype, dtype)
    assert abs(found.item() / loss.item() - 1) < ALLOWED[dtype]
    assert error(x.grad, dx) < 2 * ALLOWED[dtype]
    assert error(weight.grad, dweight) < 2 * ALLOWED[dtype]


@pytest.mark.gpu
def test_chunked_gradients_are_as_exact_as_torchs_up_to_one_rounding_per_chunk():
    torch.manual_seed(0)
    x, weight = torch.randn(3000, 512, device="cuda").bfloat16(), torch.randn(50_257, 512, device="cuda").bfloat16() / 9
    targets = torch.randint(50_257, (3000,), device="cuda")
    _, references = exact(x, weight, targets)
    x.requires_grad_(), weight.requires_grad_()
    found = torch.autograd.grad(linear_cross_entropy(x, weight, targets, in_triton(), chunk=512), (x, weight))
    torch_s = torch.autograd.grad(functional.cross_entropy((x @ weight.T).float(), targets), (x, weight))
    dx, dweight = (error(one, reference) for one, reference in zip(found, references, strict=True))
    dx_of_torch, dweight_of_torch = (error(one, reference) for one, reference in zip(torch_s, references, strict=True))
    assert dx < 1.1 * dx_of_torch
    # Five more roundings, each by at most half a unit in the last of eight bits, of sums that are half complete.
    assert dweight < math.hypot(dweight_of_torch, math.sqrt(5 / 2) * 2**-9)


def test_the_bf16_loss_is_that_of_rounded_logits_up_to_fp32_rounding(kernels):
    x, weight, targets = inputs(torch.bfloat16)
    expected = functional.cross_entropy((x @ weight.T).float().flatten(0, -2), targets.flatten())
    found = linear_cross_entropy(x, weight, targets, kernels, chunk=8)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)


class Largest(TorchDispatchMode):
    nbytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.nbytes = max(self.nbytes, getattr(result, "nbytes", 0))
        return result


@pytest.mark.parametrize(("rows", "chunk"), [(1, 256), (8192, 8192), (16_384, 8192), (32_768, 8192), (8300, 4352)])
def test_chunks_are_even_and_as_large_as_allowed(rows, chunk):
    assert chunk_rows(rows, 2 * 151_936) == chunk


def test_logits_never_exist_all_at_once_and_a_second_backward_is_refused(kernels):
    x, weight, targets = inputs()
    with Largest() as largest:
        loss = linear_cross_entropy(x.requires_grad_(), weight.requires_grad_(), targets, kernels, chunk=4)
        loss.backward(retain_graph=True)
    assert largest.nbytes == weight.nbytes < 4 * targets.numel() * VOCAB
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_no_grad_keeps_nothing_and_missing_or_unknown_targets_give_nan(kernels):
    x, weight, targets = inputs()
    with_gradients = linear_cross_entropy(x.requires_grad_(), weight, targets, kernels)
    with torch.no_grad():
        loss = linear_cross_entropy(x, weight, targets, kernels)
        assert math.isnan(linear_cross_entropy(x, weight, torch.full_like(targets, -100), kernels))
        targets[0, 0] = VOCAB  # torch raises an error for it
        assert math.isnan(linear_cross_entropy(x, weight, targets, in_triton()))
    assert loss.grad_fn is None
    torch.testing.assert_close(loss, with_gradients.detach(), rtol=0, atol=0)
