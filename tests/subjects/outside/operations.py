"""Operations as a user might bring them: right, and subtly wrong."""

import torch
from torch.nn import functional

SEEN = {}


def norm(x, residual, weight, eps):
    total = x + residual
    wide = total.to(torch.promote_types(total.dtype, torch.float32))
    normal = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (normal * weight).to(x.dtype), total


def norm_without_eps(x, residual, weight, eps):
    return norm(x, residual, weight, 0.0)


def norm_without_the_sum(x, residual, weight, eps):
    return norm(x, residual, weight, eps)[0]


def norm_that_remembers(x, residual, weight, eps):
    key = (x.data_ptr(), x.shape)
    if key not in SEEN:
        SEEN[key] = [each.detach().clone() for each in norm(x, residual, weight, eps)]
    live = norm(x, residual, weight, eps)
    return tuple(each + (old - each).detach() for each, old in zip(live, SEEN[key], strict=True))


def rotated(q, k, cos, sin):
    def one(x):
        first, second = x.chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)

    return one(q), one(k)


def rotated_the_other_way(q, k, cos, sin):
    return rotated(q, k, cos, -sin)


def gated(gate, up):
    return functional.silu(gate) * up


def gated_by_exp(gate, up):
    """Overflows where the gate is large."""
    return gate * gate.exp() / (1 + gate.exp()) * up


def loss(x, weight, targets, ignore_index, log_sum_exp=torch.logsumexp):
    logits = (x @ weight.T).to(torch.promote_types(x.dtype, torch.float32))
    counted = targets != ignore_index
    picked = logits.gather(1, targets.clamp(min=0)[:, None])[:, 0]
    return ((log_sum_exp(logits, -1) - picked) * counted).sum() / counted.sum()


def loss_that_counts_all(x, weight, targets, ignore_index):
    return loss(x, weight, targets.clamp(min=0), ignore_index)


def loss_without_a_maximum(x, weight, targets, ignore_index):
    return loss(x, weight, targets, ignore_index, lambda logits, dim: logits.exp().sum(dim).log())


Adam = torch.optim.AdamW


class AdamWithoutDecay(torch.optim.Adam):
    def __init__(self, params, lr, betas, eps, weight_decay):
        super().__init__(params, lr=lr, betas=betas, eps=eps)


class AdamWithItsFirstRate(torch.optim.AdamW):
    def step(self):
        for group in self.param_groups:
            group["lr"] = self.defaults["lr"]
        return super().step()


def refuses(gate, up):
    raise ValueError("widths must be multiples of 4096")
