"""Check a user's data-parallel training against one process that trains with the whole batch."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pipeline.instruments.memory.training_kinds import kinds_bytes
from pipeline.model.precision import precision_context
from pipeline.model.transformer import Embedding, Linear, SwiGLU
from pipeline.parallel.processes.starting import RankContext
from pipeline.subjects.checking import Verdict, Wrong
from pipeline.subjects.loading import load
from pipeline.subjects.naming import Subject
from pipeline.subjects.wrapping import Wrapped, bucket_argument, check_call

# Enough steps and parameters to exceed an accidental limit of an implementation, such as a list of fixed length.
STEPS, LAYERS = 12, 10
# Sizes divisible by all usual numbers of ranks, like those of the measured models.
ROWS_A_RANK, WIDTH, WORDS = 6, 48, 32
LEARNING_RATE = 0.1
# For sums in another order. A gradient that one rank keeps to itself moves a weight a thousand times as far.
TOLERANCE = 1e-5
# For models that compute in bf16, as a share of how far a weight has moved. Ours are off by 0.06 at most; a gradient
# that a rank keeps to itself, or that is summed instead of averaged, makes it about 1.
BF16_TOLERANCE = 0.2
NOT_SENT = "initial weights are not sent from rank 0: start all ranks from one seed"
NOT_SHARDED = "each rank holds all parameters: nothing is sharded"
STATE_NOT_SHARDED = "each rank holds all optimizer state: nothing is sharded"
# One parameter per bucket, a few, and all in one bucket.
BUCKET_SIZES_MB = (0.001, 0.03, 1000)
BUCKETS = "buckets"
# Likely causes if the first step is wrong. Ranks must agree on one: they report the highest number that any found.
UNKNOWN, NOT_AVERAGED, OWN_WEIGHTS, NOTHING_CALLED = range(4)
CAUSES = {
    UNKNOWN: "",
    NOT_AVERAGED: "; gradients are those of the ranks summed, not averaged",
    OWN_WEIGHTS: "; a rank began with weights of its own, not with rank 0's",
    NOTHING_CALLED: "; nothing was called after backward: there is neither finish_gradient_synchronization() nor"
    " after_backward",
}


def check_ddp(context: RankContext, subject: Subject) -> Verdict:
    """Raise Wrong if a rank's weights differ from one process's; the way is BUCKETS if it takes a bucket size."""
    buckets = bucket_argument(load(subject.use)) is not None
    for tied in (False, True):
        for size in BUCKET_SIZES_MB if buckets else (None,):
            model = Wrapped(_net(tied, context, seed=context.rank), subject, size)
            words = "" if size is None else f", buckets of {size} MB"
            _train_both(model, tied, context, words, seed=context.rank)
    return Verdict("ok", way=BUCKETS if buckets else "")


def check_fsdp(context: RankContext, subject: Subject, compute_dtype: torch.dtype | None) -> Verdict:
    """Check an FSDP wrapper as `check_ddp` does, gathering the weights after each step.

    If it is right, the reason says if ranks must start with equal weights, and if nothing is sharded. With a compute
    dtype, each weight must move about as it does in one process in fp32.
    """
    notes = []
    for tied in (False, True):
        net = _net(tied, context, seed=0)
        whole_bytes = sum(parameter.nbytes for parameter in net.parameters())
        model = Wrapped(net, subject)
        _train_both(model, tied, context, "", seed=0)
        assert model.optimizer is not None
        is_whole = kinds_bytes(model, model.optimizer)["parameters"] >= whole_bytes
        if _over_ranks(is_whole, dist.ReduceOp.MIN, context):
            notes.append(NOT_SHARDED)
        if compute_dtype is not None:
            model = Wrapped(_net(tied, context, seed=0), subject, compute_dtype=compute_dtype)
            words = f", computing in {str(compute_dtype).removeprefix('torch.')}"
            _train_both(model, tied, context, words, seed=0, in_part=True)
    sent = Wrapped(_net(False, context, seed=context.rank), subject).gather()
    wanted = dict(_net(False, context, seed=0).named_parameters())
    is_sent = all(torch.equal(sent[name].to(wanted[name]), wanted[name]) for name in wanted)
    if not _over_ranks(is_sent, dist.ReduceOp.MIN, context):
        notes.append(NOT_SENT)
    return Verdict("ok", "; ".join(dict.fromkeys(notes)))


def check_optimizer(context: RankContext, subject: Subject) -> Verdict:
    """Check a sharded optimizer against unsharded AdamW: all ranks have the same gradients and keep equal weights.

    If it is right, the reason says if nothing is sharded.
    """
    notes, make = [], load(subject.use)
    options: dict[str, Any] = {"lr": LEARNING_RATE / 10, "weight_decay": 0.1}
    check_call(make, subject, ["params", "torch.optim.AdamW"], options)
    for tied in (False, True):
        nets = [_net(tied, context, seed=0) for _ in range(2)]
        optimizers = [
            make(nets[0].parameters(), torch.optim.AdamW, **options),
            torch.optim.AdamW(nets[1].parameters(), **options),
        ]
        for step in range(STEPS):
            batch = _batch(step, context)
            for net, optimizer in zip(nets, optimizers, strict=True):
                _loss(net, *batch).backward()
                optimizer.step()
                optimizer.zero_grad()
            _compare(dict(nets[0].named_parameters()), nets[1], step, tied, "unsharded AdamW")
        held, whole = (kinds_bytes(*each)["optimizer_state"] for each in zip(nets, optimizers, strict=True))
        if _over_ranks(held >= whole, dist.ReduceOp.MIN, context):
            notes.append(STATE_NOT_SHARDED)
    return Verdict("ok", "; ".join(dict.fromkeys(notes)))


# By the kind of subject.
CHECKS: dict[str, Callable[..., Verdict]] = {"ddp": check_ddp, "fsdp": check_fsdp, "optimizer": check_optimizer}


def _train_both(model: Wrapped, tied: bool, context: RankContext, words: str, seed: int, in_part: bool = False) -> None:
    """Train on this rank's part of each batch, and one replica on the whole batch; compare weights after each step.

    seed: of this rank's initial weights. in_part: the model computes in bf16; compare by how far a weight has moved.
    """
    whole = _net(tied, context, seed=0)
    start, own_start = (
        {name: tensor.detach().clone() for name, tensor in net.named_parameters()}
        for net in (whole, _net(tied, context, seed))
    )
    own = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    others = torch.optim.SGD(whole.parameters(), lr=LEARNING_RATE)
    model.optimizer = own
    for step in range(STEPS):
        tokens, targets = _batch(step, context)
        with precision_context("bf16", context.device.type) if in_part else nullcontext():  # as it is measured
            loss = _loss(model, *(part[context.rank :: context.world_size] for part in (tokens, targets)))
        loss.backward()
        model.finish_gradients()
        own.step()
        own.zero_grad()
        _loss(whole, tokens, targets).backward()
        others.step()
        others.zero_grad()
        found, beside = model.gather(), f"one process with the whole batch{words}"
        complaint: Wrong | None = None
        try:
            _compare(found, whole, step, tied, beside, start if in_part else None)
        except Wrong as wrong:
            complaint = wrong
        if step == 0:
            cause = _likely_cause(found, whole, start, own_start, context) if complaint else UNKNOWN
            if complaint and cause == UNKNOWN and not model.finishes:
                cause = NOTHING_CALLED
            cause = _over_ranks(cause, dist.ReduceOp.MAX, context)
            complaint = Wrong(f"{complaint}{CAUSES[cause]}") if complaint else None
        if complaint:
            raise complaint


def _likely_cause(
    found: Mapping[str, Tensor],
    whole: nn.Module,
    start: Mapping[str, Tensor],
    own_start: Mapping[str, Tensor],
    context: RankContext,
) -> int:
    """Return the key in CAUSES that explains the first step; start, own_start: rank 0's and this rank's old weights."""
    wanted = dict(whole.named_parameters())
    if any(name not in found or found[name].shape != weight.shape for name, weight in wanted.items()):
        return UNKNOWN

    def moved(to: Mapping[str, Tensor], since: Mapping[str, Tensor]) -> Tensor:
        return torch.cat([(to[name].detach().to(since[name]) - since[name]).flatten() for name in wanted])

    by, right = moved(found, start), moved(wanted, start)
    if moved(found, own_start).norm() < by.norm() / 2:
        return OWN_WEIGHTS
    is_summed = (by - context.world_size * right).norm() < 0.1 * by.norm()
    return NOT_AVERAGED if is_summed else UNKNOWN


class _Net(nn.Module):
    """A small net of the measured models' layers, in many sizes."""

    def __init__(self, tied: bool):
        super().__init__()
        self.embedding, self.head = Embedding(WORDS, WIDTH), Linear(WIDTH, WORDS)
        self.norms = nn.ModuleList(nn.RMSNorm(WIDTH) for _ in range(LAYERS))
        self.layers = nn.ModuleList(SwiGLU(WIDTH, 16 * (1 + number)) for number in range(LAYERS))
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = x + layer(norm(x))
        return self.head(x / WIDTH**0.5)  # keeps training stable with tied weights, whose variance is 1


def _net(tied: bool, context: RankContext, seed: int) -> nn.Module:
    """Return a small net with weights drawn from a seed."""
    torch.manual_seed(seed)
    return _Net(tied).to(context.device)


def _over_ranks(number: int, operation: Any, context: RankContext) -> int:
    """Reduce a number over all ranks; all must call this."""
    found = torch.tensor(int(number), device=context.device)
    dist.all_reduce(found, operation)
    return int(found)


def _batch(step: int, context: RankContext) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    shape = (2, ROWS_A_RANK * context.world_size)
    tokens, targets = torch.randint(WORDS, shape, generator=generator).to(context.device)
    return tokens, targets


def _loss(model: nn.Module, tokens: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(tokens), targets)


def _compare(
    weights: Mapping[str, Tensor],
    wanted: nn.Module,
    step: int,
    tied: bool,
    beside: str,
    start: Mapping[str, Tensor] | None = None,
) -> None:
    """Raise Wrong, naming the worst weight, if one is further from the wanted one than rounding explains.

    start: the weights before the first step, to take distances as a share of how far the wanted weight has moved.
    """
    off, allowed = {}, TOLERANCE if start is None else BF16_TOLERANCE
    for name, weight in wanted.named_parameters():
        if name not in weights or weights[name].shape != weight.shape:
            raise Wrong(f"there is no full parameter {name} of shape {tuple(weight.shape)}; got {', '.join(weights)}")
        difference = weights[name].detach().to(weight) - weight.detach()
        distance = (
            difference.abs().max() if start is None else difference.norm() / (weight.detach() - start[name]).norm()
        )
        off[name] = distance.nan_to_num(nan=float("inf")).item()
    worst = max(off, key=lambda name: off[name])
    if off[worst] > allowed:
        net = "tied" if tied else "untied"
        bad = sum(each > allowed for each in off.values())
        raise Wrong(
            f"after step {step + 1} {worst} is off by {off[worst]:.2g} from {beside}, allowed is {allowed:g}; "
            f"{bad} of {len(off)} parameters of a net with {net} weights are off"
        )
