"""Build a user's language model, and check it before it is timed."""

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from pipeline.formulas.sizes import ModelSize
from pipeline.parallel.processes.starting import RankContext
from pipeline.subjects.checking import Verdict, Wrong
from pipeline.subjects.loading import load
from pipeline.subjects.naming import Subject

SIZE = ModelSize(d_model=32, d_ff=64, num_layers=2, num_heads=2)
VOCAB_SIZE, CONTEXT_LENGTH, BATCH_SIZE = 50, 24, 2
STEPS, LEARNING_RATE = 10, 1e-2
ROPE_THETA = 10_000.0
# Relative to the largest logit: later tokens may change the order of sums.
TOLERANCE = 1e-4


def build_model(subject: Subject, size: ModelSize, vocab_size: int, context_length: int) -> nn.Module:
    """Build the user's model with those of the course's and our arguments that it takes; raises what it raises."""
    make = load(subject.use)
    known: dict[str, Any] = {
        "vocab_size": size.vocabulary(vocab_size),
        "context_length": context_length,
        "d_model": size.d_model,
        "num_layers": size.num_layers,
        "num_heads": size.num_heads,
        "d_ff": size.d_ff,
        "num_kv_heads": size.kv_width // size.head_dim,
        "head_dim": size.head_dim,
        "tie_embeddings": size.tie_embeddings,
        "rope_theta": ROPE_THETA,
    }
    taken = inspect.signature(make).parameters
    return make(**{name: value for name, value in known.items() if name in taken})


def check_model(context: RankContext, subject: Subject) -> Verdict:
    """Raise Wrong unless a small model's logits have the right shape, no token sees a later one, and its loss falls."""
    torch.manual_seed(0)
    with context.device:
        model = build_model(subject, SIZE, VOCAB_SIZE, CONTEXT_LENGTH)
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(VOCAB_SIZE, (BATCH_SIZE, CONTEXT_LENGTH + 1), generator=generator).to(context.device)
    tokens, targets = drawn[:, :-1], drawn[:, 1:]
    _check_logits(model, tokens)
    _check_learning(model, tokens, targets)
    return Verdict("ok")


@torch.no_grad()
def _check_logits(model: nn.Module, tokens: Tensor) -> None:
    logits = model(tokens)
    wanted = (BATCH_SIZE, CONTEXT_LENGTH, VOCAB_SIZE)
    if logits.shape != wanted:
        raise Wrong(f"logits have shape {tuple(logits.shape)}, must have (batch, length, vocabulary), {wanted}")
    half = CONTEXT_LENGTH // 2
    others = tokens.clone()
    others[:, half:] = (others[:, half:] + 1) % VOCAB_SIZE
    off = (model(others)[:, :half] - logits[:, :half]).abs().max() / logits.abs().max()
    if not off <= TOLERANCE:  # true for NaN too
        raise Wrong(f"logits of the first {half} tokens change by {off.item():.2g} of the largest with later tokens")


def _check_learning(model: nn.Module, tokens: Tensor, targets: Tensor) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    losses = []
    for step in range(STEPS):
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
        loss.backward()
        without = [name for name, each in model.named_parameters() if each.requires_grad and each.grad is None]
        if step == 0 and without:
            raise Wrong(f"no gradient reaches {', '.join(without)}")
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    if not losses[-1] < losses[0]:
        raise Wrong(f"the loss of one batch goes from {losses[0]:.3g} to {losses[-1]:.3g} in {STEPS} steps of AdamW")
