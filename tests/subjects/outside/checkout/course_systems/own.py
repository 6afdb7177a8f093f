"""One implementation per kind; each imports a module of its project when it runs."""

import torch
import torch.distributed as dist
from torch import nn


def leave_a_trace():
    from course_systems import late

    late.leave_a_trace()


def attention(q, k, v, is_causal=False):
    leave_a_trace()
    return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal)


class Wrapper(nn.Module):
    """Averages gradients after the backward pass and shards nothing."""

    def __init__(self, module):
        super().__init__()
        self.module = module
        for parameter in module.parameters():
            dist.broadcast(parameter.data, src=0)

    def forward(self, *args):
        leave_a_trace()
        return self.module(*args)

    def finish_gradient_synchronization(self):
        for parameter in self.module.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()

    def full_state_dict(self):
        return dict(self.module.named_parameters())


class Optimizer(torch.optim.Optimizer):
    """Shards nothing."""

    def __init__(self, params, optimizer_cls, **kwargs):
        every = list(params)
        super().__init__(every, kwargs)
        self.inner = optimizer_cls(every, **kwargs)

    def step(self):
        leave_a_trace()
        self.inner.step()


class Model(nn.Module):
    def __init__(self, vocab_size, d_model):
        super().__init__()
        self.tokens, self.head = nn.Embedding(vocab_size, d_model), nn.Linear(d_model, vocab_size)

    def forward(self, tokens):
        leave_a_trace()
        return self.head(self.tokens(tokens))
