"""Data-parallel training as a user might bring it: right and subtly wrong."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


def average(wrapper, optimizer):
    wrapper.average_of(list(wrapper.module.parameters()))


class Container:
    """Averages after backward; it is not a module, and its method for this has its own name."""

    divides, sends, parts = True, True, slice(None)

    def __init__(self, module):
        self.module = module
        for parameter in module.parameters() if self.sends else ():
            dist.broadcast(parameter.data, src=0)

    def __call__(self, *args):
        return self.module(*args)

    def average_of(self, parameters):
        for parameter in parameters[self.parts]:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size() if self.divides else 1


class KeepsOneToItself(Container):
    """Leaves one gradient of each rank unaveraged."""

    parts = slice(1, None)

    def finish_gradient_synchronization(self):
        average(self, None)


class AveragesTheFirst16(KeepsOneToItself):
    """Averages no more than 16 parameters."""

    parts = slice(16)


class Sums(KeepsOneToItself):
    """Forgets to divide by the number of ranks."""

    divides, parts = False, slice(None)


class WithoutBroadcast(KeepsOneToItself):
    """Averages, but ranks start with different weights."""

    sends, parts = False, slice(None)


class Buckets(nn.Module):
    """Averages in buckets during the backward pass."""

    def __init__(self, module, bucket_size_mb):
        super().__init__()
        self.module, self.most_bytes = module, bucket_size_mb * 2**20
        self.waiting, self.works = [], []
        for parameter in module.parameters():
            dist.broadcast(parameter.data, src=0)
            parameter.register_post_accumulate_grad_hook(self.add)

    def forward(self, *args):
        return self.module(*args)

    def add(self, parameter):
        self.waiting.append(parameter)
        if sum(each.grad.nbytes for each in self.waiting) >= self.most_bytes:
            self.send()

    def send(self):
        if self.waiting:
            flat = torch.cat([parameter.grad.flatten() for parameter in self.waiting])
            self.works.append((dist.all_reduce(flat, async_op=True), flat, self.waiting))
            self.waiting = []

    def finish_gradient_synchronization(self):
        self.send()
        for work, flat, parameters in self.works:
            work.wait()
            parts = (flat / dist.get_world_size()).split([parameter.numel() for parameter in parameters])
            for parameter, part in zip(parameters, parts, strict=True):
                parameter.grad.copy_(part.view_as(parameter))
        self.works = []


class ForgetsTheLastBucket(Buckets):
    """Right only if every bucket is full."""

    def finish_gradient_synchronization(self):
        self.waiting = []
        super().finish_gradient_synchronization()


class Shards(torch.optim.Optimizer):
    """Each rank updates every second parameter and sends it to the others."""

    sent = slice(None)

    def __init__(self, params, optimizer_cls, **kwargs):
        self.every = list(params)
        super().__init__(self.every, kwargs)
        mine = self.every[dist.get_rank() :: dist.get_world_size()]
        self.inner = optimizer_cls(mine, **kwargs)

    def step(self):
        self.inner.step()
        for number, parameter in enumerate(self.every[self.sent]):
            dist.broadcast(parameter.data, src=number % dist.get_world_size())


class ForgetsTheLastParameter(Shards):
    """One parameter is never sent."""

    sent = slice(-1)


class DropsAShard(Shards):
    """Rank 1 no longer updates its share after 4 steps; all ranks still have the same weights."""

    steps = 0

    def step(self):
        self.steps += 1
        if self.steps > 4 and dist.get_rank() == 1:
            self.inner.zero_grad()
        super().step()


def takes_no_optimizer(params):
    """Not what a sharded optimizer must take."""
    return torch.optim.AdamW(params)


def not_sharded(params, optimizer_cls, **kwargs):
    """Right, but every rank holds all state."""
    return optimizer_cls(params, **kwargs)


class WholeFSDP(nn.Module):
    """Shards nothing, but trains as FSDP does."""

    divides, parts = True, slice(None)

    def __init__(self, module, compute_dtype=None):
        super().__init__()
        self.module = module
        for parameter in module.parameters():
            dist.broadcast(parameter.data, src=0)

    def forward(self, *args):
        return self.module(*args)

    def finish_gradient_synchronization(self):
        Container.average_of(self, list(self.module.parameters()))


class SumsInBf16(WholeFSDP):
    """Forgets to divide by the number of ranks when it computes in bf16."""

    def __init__(self, module, compute_dtype=None):
        super().__init__(module)
        self.divides = compute_dtype is None


def by_torch(module, compute_dtype=None):
    """PyTorch's FSDP, which leaves it to the user to start all ranks with equal weights."""
    policy = MixedPrecisionPolicy(param_dtype=compute_dtype)
    for layer in module.layers:
        fully_shard(layer, mp_policy=policy)
    return fully_shard(module, mp_policy=policy)


def gather_of_torch(model):
    return {name: parameter.full_tensor() for name, parameter in model.named_parameters()}


def gather(wrapper):
    return dict(wrapper.module.named_parameters())


def gather_all_but_one(wrapper):
    return dict(list(wrapper.module.named_parameters())[1:])
