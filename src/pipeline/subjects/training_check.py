"""Check data-parallel training of the user's own against one process that trains with the whole batch."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pipeline.parallel.processes.starting import RankContext
from pipeline.subjects.checking import Verdict, Wrong
from pipeline.subjects.loading import load
from pipeline.subjects.naming import Subject
from pipeline.subjects.wrapping import Wrapped, bucket_argument

STEPS, ROWS_A_RANK, WIDTH, WORDS = 4, 6, 48, 20
LEARNING_RATE = 0.1
# Between sums in another order. A gradient that one rank keeps to itself moves a weight by a thousand times as much.
TOLERANCE = 1e-5
# Of how far a weight has moved, where the model computes in bf16. Ours are off by 0.06 at most; a gradient that a rank
# keeps to itself, or that is summed instead of averaged, makes it about 1.
BF16_TOLERANCE = 0.2
# So that each parameter is a bucket, that a few are, and that all are.
BUCKET_SIZES_MB = (0.001, 0.03, 1000)
BUCKETS = "buckets"
# Of the first step's complaint, by number: ranks must agree on one, and the highest that any rank found is told.
UNKNOWN, NOT_AVERAGED, OWN_WEIGHTS, NOTHING_CALLED = range(4)
CAUSES = {
    UNKNOWN: "",
    NOT_AVERAGED: "; gradients are those of the ranks summed, not averaged",
    OWN_WEIGHTS: "; a rank began with weights of its own, not with rank 0's",
    NOTHING_CALLED: "; nothing was called after backward: there is neither finish_gradient_synchronization() nor"
    " after_backward",
}


def check_ddp(context: RankContext, subject: Subject) -> Verdict:
    """Check a DDP wrapper with tied and untied weights; its way is BUCKETS where it takes a bucket size.

    Raises Wrong on a rank whose weights are not those of one process.
    """
    buckets = bucket_argument(load(subject.use)) is not None
    for tied in (False, True):
        for size in BUCKET_SIZES_MB if buckets else (None,):
            net = _net(tied, context, seed=context.rank)
            model = Wrapped(net, subject, size)
            words = "" if size is None else f", buckets of {size} MB"
            _train_both(model, net.parameters(), lambda net=net: dict(net.named_parameters()), tied, context, words)
    return Verdict("ok", way=BUCKETS if buckets else "")


def check_fsdp(context: RankContext, subject: Subject, compute_dtype: torch.dtype | None) -> Verdict:
    """Check an FSDP wrapper as `check_ddp` does; the weights that are compared are gathered after each step.

    With a dtype to compute in, such as bf16, each weight has to move as that of one process in fp32 does, about.
    """
    for tied in (False, True):
        model = Wrapped(_net(tied, context, seed=context.rank), subject)
        _train_both(model, model.parameters(), model.gather, tied, context, "")
        if compute_dtype is not None:
            model = Wrapped(_net(tied, context, seed=context.rank), subject, compute_dtype=compute_dtype)
            words = f", computing in {str(compute_dtype).removeprefix('torch.')}"
            _train_both(model, model.parameters(), model.gather, tied, context, words, in_part=True)
    return Verdict("ok")


def check_optimizer(context: RankContext, subject: Subject) -> Verdict:
    """Check a sharded optimizer against AdamW in full: every rank has the same gradients and keeps the same weights."""
    for tied in (False, True):
        nets = [_net(tied, context, seed=0) for _ in range(2)]
        options: dict[str, Any] = {"lr": LEARNING_RATE, "weight_decay": 0.1}
        optimizers = [
            load(subject.use)(nets[0].parameters(), torch.optim.AdamW, **options),
            torch.optim.AdamW(nets[1].parameters(), **options),
        ]
        for step in range(STEPS):
            batch = _batch(step, context)
            for net, optimizer in zip(nets, optimizers, strict=True):
                _loss(net, *batch).backward()
                optimizer.step()
                optimizer.zero_grad()
            _compare(dict(nets[0].named_parameters()), nets[1], step, tied, "AdamW in full")
    return Verdict("ok")


def _train_both(
    model: Wrapped,
    parameters: Iterable[Tensor],
    weights: Any,
    tied: bool,
    context: RankContext,
    words: str,
    in_part: bool = False,
) -> None:
    """Train with this rank's part of each batch, and beside it one replica with the whole; compare after each step.

    in_part: compare by how far a weight has moved.
    """
    whole = _net(tied, context, seed=0)
    start, own_start = (_copies(net.named_parameters()) for net in (whole, _net(tied, context, seed=context.rank)))
    own = torch.optim.SGD(parameters, lr=LEARNING_RATE)
    others = torch.optim.SGD(whole.parameters(), lr=LEARNING_RATE)
    model.optimizer = own
    for step in range(STEPS):
        tokens, targets = _batch(step, context)
        _loss(model, *(part[context.rank :: context.world_size] for part in (tokens, targets))).backward()
        model.finish_gradients()
        own.step()
        own.zero_grad()
        _loss(whole, tokens, targets).backward()
        others.step()
        others.zero_grad()
        found, beside = weights(), f"one process with the whole batch{words}"
        complaint: Wrong | None = None
        try:
            _compare(found, whole, step, tied, beside, start if in_part else None)
        except Wrong as wrong:
            complaint = wrong
        if step == 0:
            cause = _likely_cause(found, whole, start, own_start, context) if complaint else UNKNOWN
            if complaint and cause == UNKNOWN and not model.finishes:
                cause = NOTHING_CALLED
            complaint = _with_cause(complaint, cause, context)
        if complaint:
            raise complaint


def _with_cause(complaint: Wrong | None, cause: int, context: RankContext) -> Wrong | None:
    """Add what any rank took for the cause to what this one complains of; all ranks call it."""
    causes = torch.tensor(cause, device=context.device)
    dist.all_reduce(causes, dist.ReduceOp.MAX)
    return Wrong(f"{complaint}{CAUSES[int(causes)]}") if complaint else None


def _copies(named: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in named}


def _likely_cause(
    found: Mapping[str, Tensor],
    whole: nn.Module,
    start: Mapping[str, Tensor],
    own_start: Mapping[str, Tensor],
    context: RankContext,
) -> int:
    """Tell two usual mistakes by the first step; return a key of CAUSES.

    start, own_start: the weights before it of rank 0 and of this rank, which the wrapper was given.
    """
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


def _net(tied: bool, context: RankContext, seed: int) -> nn.Module:
    """Return a small net, on each rank with the weights of its seed: a wrapper has to copy rank 0's to all."""
    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Embedding(WORDS, WIDTH),
        nn.LayerNorm(WIDTH),
        nn.Linear(WIDTH, 2 * WIDTH),
        nn.ReLU(),
        nn.Linear(2 * WIDTH, WIDTH, bias=False),
        nn.Linear(WIDTH, WORDS, bias=False),
    )
    if tied:
        net[5].weight = net[0].weight
    return net.to(context.device)


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
    """Raise Wrong where a weight is further from the wanted one than rounding explains, the furthest first.

    start: the weights before the first step; the distance is then a share of how far the wanted one is from there.
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
