"""Attention functions as a user might bring them: right, subtly wrong, hanging and crashing."""

import math
import os
import signal
import time

import torch

from .masks import future

BLOCK = 64


class Right(torch.autograd.Function):
    """The plain formula with a hand-written backward pass; for (batch, length, head_dim)."""

    @staticmethod
    def forward(ctx, q, k, v, is_causal=False):
        return Right.of_products(ctx, q.double() @ k.double().mT, q, k, v, is_causal)

    @staticmethod
    def of_products(ctx, products, q, k, v, is_causal):
        _batch, _length, head_dim = q.shape
        scores = products / math.sqrt(head_dim)
        if is_causal:
            scores = scores.masked_fill(future(*scores.shape[-2:]), -math.inf)
        weights = scores.softmax(-1)
        ctx.save_for_backward(q, k, v, weights)
        return (weights @ v.double()).to(q.dtype)

    @staticmethod
    def backward(ctx, do):
        q, k, v, weights = (tensor.double() for tensor in ctx.saved_tensors)
        do64 = do.double()
        products = do64 @ v.mT
        ds = weights * (products - (products * weights).sum(-1, keepdim=True)) / math.sqrt(q.shape[-1])
        return (ds @ k).to(do.dtype), (ds.mT @ q).to(do.dtype), (weights.mT @ do64).to(do.dtype), None


def by_name_alone(q, k, v, *, is_causal=False):
    return Right.apply(q, k, v, is_causal)


def shares_keys(q, k, v, is_causal):
    """For (batch, heads, length, head_dim) only, also with fewer key heads than query heads."""
    _batch, kv_heads, length, head_dim = k.shape
    group = q.shape[1] // kv_heads
    folded = (tensor.reshape(-1, length, head_dim) for tensor in (q, *(x.repeat_interleave(group, 1) for x in (k, v))))
    return Right.apply(*folded, is_causal).view_as(q)


def shares_when_asked(q, k, v, is_causal, enable_gqa=False):
    if q.shape[1] != k.shape[1] and not enable_gqa:
        raise ValueError("keys have fewer heads")
    return shares_keys(q, k, v, is_causal)


def masked(q, k, v, mask):
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    return (scores if mask is None else scores.masked_fill(mask, -math.inf)).softmax(-1) @ v


def off_by_one(q, k, v, is_causal):
    """Each query of a block on the diagonal also sees the next key of that block."""
    length = q.shape[-2]
    block = torch.arange(length) // BLOCK
    next_of_block = (torch.arange(length)[:, None] + 1 == torch.arange(length)) & (block[:, None] == block)
    return masked(q, k, v, future(length, length) & ~next_of_block if is_causal else None)


def sees_the_past_alone(q, k, v, is_causal):
    length = q.shape[-2]
    return masked(q, k, v, ~torch.ones(length, length, dtype=torch.bool).tril(-1) if is_causal else None)


def raises_at_length_64(q, k, v, is_causal):
    raise RuntimeError("my kernel is not ready")


def _with_scale(power):
    return lambda q, k, v, is_causal: Right.apply(q * q.shape[-1] ** (power + 0.5), k, v, is_causal)


without_scale, with_the_scale_twice = _with_scale(0), _with_scale(-1)


def without_mask(q, k, v, is_causal):
    return Right.apply(q, k, v)


def without_scale_in_backward(q, k, v, is_causal):
    """The output is right, the gradient of q is not."""
    output = Right.apply(q, k, v, is_causal)
    if q.requires_grad:
        q.register_hook(lambda gradient: gradient * math.sqrt(q.shape[-1]))
    return output


def powers_of_two_alone(q, k, v, is_causal):
    length = q.shape[-2]
    if length & (length - 1):
        raise ValueError(f"length {length}: must be a power of two")
    return Right.apply(q, k, v, is_causal)


def wrong_at_odd_lengths(q, k, v, is_causal):
    """Rounds the length down to a multiple of 16, like a kernel that does not mask its last block."""
    length = q.shape[-2] // 16 * 16
    output = Right.apply(q[:, :length], k[:, :length], v[:, :length], is_causal)
    return torch.nn.functional.pad(output, (0, 0, 0, q.shape[-2] - length))


def hangs(q, k, v, is_causal):
    time.sleep(600)


def crashes(*_inputs):
    os.kill(os.getpid(), signal.SIGSEGV)


def _at_length(length, change):
    """Right at all lengths but this one, so a check that does not use it passes."""

    def attention(q, k, v, is_causal):
        output = Right.apply(q, k, v, is_causal)
        return change(output) if q.shape[-2] == length else output

    return attention


crashes_at_length_113 = _at_length(113, crashes)
nan_at_length_32, doubled_at_length_32 = _at_length(32, lambda out: out * math.nan), _at_length(32, lambda out: out * 2)


def unfinished(q, k, v, is_causal):
    raise NotImplementedError


def scales_q_in_place(q, k, v, is_causal):
    """Output and gradients are right, but the caller's q is changed."""
    output = Right.apply(q.clone(), k, v, is_causal)
    q.data.mul_(0.5)
    return output


def returns_lse_too(q, k, v, is_causal):
    return Right.apply(q, k, v, is_causal), None


def without_dk(q, k, v, is_causal):
    return Right.apply(q, k.detach(), v, is_causal)


class ForwardAlone(Right):
    """Its backward pass is not written yet."""

    @staticmethod
    def backward(ctx, do):
        raise NotImplementedError


class Module(torch.nn.Module):
    """A class that must be built first, not an autograd function."""

    def forward(self, q, k, v, is_causal):
        return Right.apply(q, k, v, is_causal)


def right_at_any_length(q, k, v, is_causal):
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal)


def one_row_left_out(q, k, v, is_causal):
    """Zero the output of one query, at lengths that no check uses."""
    out = right_at_any_length(q, k, v, is_causal)
    keep = torch.ones(q.shape[-2], 1, dtype=out.dtype)
    if q.shape[-2] > 512:
        keep[650] = 0
    return out * keep


def of_three(q, k, v):
    return Right.apply(q, k, v, False)


def detached(q, k, v, is_causal):
    return Right.apply(q, k, v, is_causal).detach()
