"""Attention that keeps state between calls; the first call is always right."""

import torch

from .attention import Right, right_at_any_length

FIRST_CALLS = 6
outputs, gradients, sums, calls = {}, {}, {}, []


class OfPointers(torch.autograd.Function):
    """Computes nothing if an earlier call had the same tensors."""

    @staticmethod
    def key(q, k, v):
        return q.data_ptr(), k.data_ptr(), v.data_ptr(), q.shape

    @classmethod
    def attention(cls, q, k, v, is_causal):
        return cls.apply(q, k, v, is_causal, cls.key(q, k, v))

    @staticmethod
    def forward(ctx, q, k, v, is_causal, key):
        ctx.save_for_backward(q, k, v)
        ctx.is_causal, ctx.key = is_causal, key
        if key not in outputs:
            outputs[key] = right_at_any_length(q, k, v, is_causal)
        return outputs[key].clone()

    @staticmethod
    def backward(ctx, do):
        if ctx.key not in gradients:
            leaves = [tensor.detach().requires_grad_() for tensor in ctx.saved_tensors]
            with torch.enable_grad():
                output = right_at_any_length(*leaves, ctx.is_causal)
            gradients[ctx.key] = torch.autograd.grad(output, leaves, do)
        return (*gradients[ctx.key], None, None)


class FirstCallsAlone(OfPointers):
    """Computes as many calls of a shape as a check and a trial make; later calls return a stored result."""

    @staticmethod
    def key(q, k, v):
        calls.append(q.shape)
        return q.shape, min(calls.count(q.shape), FIRST_CALLS)


class AddsToDq(Right):
    """Never clears the buffer in which it sums dq."""

    @staticmethod
    def backward(ctx, do):
        dq, *others = Right.backward(ctx, do)
        sums[dq.shape] = sums.get(dq.shape, 0) + dq
        return sums[dq.shape], *others


def at_length_32(of):
    """Use an implementation at length 32 only, which a check does not use."""
    return lambda q, k, v, is_causal: (of if q.shape[-2] == 32 else right_at_any_length)(q, k, v, is_causal)


of_pointers_at_length_32 = at_length_32(OfPointers.attention)
first_calls_alone = FirstCallsAlone.attention
of_pointers = OfPointers.attention
adds_to_dq_at_length_32 = at_length_32(AddsToDq.apply)
