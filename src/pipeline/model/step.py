"""One training step of a language model, in phases that can be measured separately."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from pipeline.attention import AttentionFunction
from pipeline.formulas.sizes import ModelSize
from pipeline.model.precision import matmul_precision, precision_context
from pipeline.model.transformer import TransformerLM
from pipeline.ranges import span


@dataclass
class TrainingStep:
    """Run forward, backward and optimizer on one fixed batch.

    Shapes: `tokens` and `targets` are (batch, seq_len) int64. `finish_gradients`, if given, runs before the optimizer:
    data-parallel ranks wait there for their averaged gradients. The first phase raises ValueError if `precision` is
    unknown.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    tokens: Tensor
    targets: Tensor
    precision: str
    finish_gradients: Callable[[], object] | None = None
    _loss: Tensor | None = field(default=None, init=False, repr=False)

    def forward(self) -> Tensor:
        """Compute the logits and the mean cross-entropy in nats; return the loss, a scalar."""
        self._loss = None  # free the graph of a forward pass without backward before building the next
        with precision_context(self.precision, self.tokens.device.type):
            with span("forward"):
                logits = self.model(self.tokens)
            with span("loss"):
                self._loss = functional.cross_entropy(logits.flatten(0, 1), self.targets.flatten())
        return self._loss

    def backward(self) -> None:
        """Add the last loss's gradients to the parameters'. Raises RuntimeError if no forward pass came before."""
        if self._loss is None:
            raise RuntimeError("backward() needs a forward() before it")
        # Without autocast, as PyTorch recommends: each operation's backward runs in the dtype of its forward.
        with span("backward"), matmul_precision(self.precision):
            self._loss.backward()
        self._loss = None

    def synchronize_gradients(self) -> None:
        """Wait until the gradients are averaged; do nothing if `finish_gradients` is None."""
        if self.finish_gradients is not None:
            with span("gradient_synchronization"):
                self.finish_gradients()

    def optimizer_step(self) -> None:
        """Update the parameters and drop the gradients."""
        with span("optimizer"):
            self.optimizer.step()
            self.optimizer.zero_grad()

    def discard(self) -> None:
        """Drop the loss with its graph, and the gradients."""
        self._loss = None
        self.optimizer.zero_grad()

    def run(self) -> Tensor:
        """Run the phases in order; return the loss before the update, detached from its graph."""
        loss = self.forward().detach()
        self.backward()
        self.synchronize_gradients()
        self.optimizer_step()
        return loss


def build_training_step(
    size: ModelSize,
    *,
    vocab_size: int,
    context_length: int,
    batch_size: int,
    precision: str,
    device: str | torch.device,
    compiled: bool = False,
    fused_optimizer: bool = False,
    attention: str | AttentionFunction = "eager",
    checkpoint_every: int = 0,
    checkpointing: str = "segments",
    weights_dtype: torch.dtype = torch.float32,
    convert: Callable[[TransformerLM], object] | None = None,
    make_optimizer: Callable[[nn.Module], torch.optim.Optimizer] | None = None,
    seed: int = 0,
) -> TrainingStep:
    """Build a model on `device`, AdamW, and a batch of random tokens.

    AdamW is PyTorch's default implementation (`foreach` on a GPU, a loop over tensors on a CPU), or the fused one,
    which updates many tensors in one kernel.

    `compiled`: compile each block by itself. Equal blocks share one compilation (regional compilation, as torchtitan
    does it); embedding, last norm, head and loss stay eager.

    `convert`: changes the model before it is compiled. `make_optimizer`: makes an optimizer other than AdamW.

    `weights_dtype`: the dtype of parameters, gradients and optimizer state. Weights are drawn in fp32; the rotary
    tables stay in fp32.

    The seed sets PyTorch's global generators, which draw the weights, and a separate generator for the tokens.
    Raises ValueError as `TransformerLM` does.
    """
    torch.manual_seed(seed)
    vocab_size = size.vocabulary(vocab_size)
    with torch.device(device):
        model = TransformerLM(
            vocab_size=vocab_size,
            context_length=context_length,
            attention=attention,
            checkpoint_every=checkpoint_every,
            checkpointing=checkpointing,
            **size.widths(),
        )
    for parameter in model.parameters():
        parameter.data = parameter.data.to(weights_dtype)
    if convert is not None:
        convert(model)
    if compiled:
        for layer in model.layers:
            layer.compile()
    return step_of(
        model,
        vocab_size=vocab_size,
        context_length=context_length,
        batch_size=batch_size,
        precision=precision,
        device=device,
        fused_optimizer=fused_optimizer,
        make_optimizer=make_optimizer,
        seed=seed,
    )


def step_of(
    model: nn.Module,
    *,
    vocab_size: int,
    context_length: int,
    batch_size: int,
    precision: str,
    device: str | torch.device,
    fused_optimizer: bool = False,
    make_optimizer: Callable[[nn.Module], torch.optim.Optimizer] | None = None,
    seed: int = 0,
) -> TrainingStep:
    """Return a model's training step on `device` with AdamW, or another optimizer, and a batch of random tokens."""
    if make_optimizer is None:
        make_optimizer = partial(_adamw, fused_optimizer)
    optimizer = make_optimizer(model)
    tokens, targets = _random_batch(vocab_size, context_length, batch_size, seed)
    return TrainingStep(
        model=model,
        optimizer=optimizer,
        tokens=tokens.to(device),
        targets=targets.to(device),
        precision=precision,
    )


def _adamw(is_fused: bool, model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), fused=True if is_fused else None)


def _random_batch(vocab_size: int, seq_len: int, batch_size: int, seed: int) -> tuple[Tensor, Tensor]:
    """Draw tokens and their successors on the CPU: the same on every device."""
    generator = torch.Generator().manual_seed(seed)
    sequences = torch.randint(vocab_size, (batch_size, seq_len + 1), generator=generator)
    return sequences[:, :-1].contiguous(), sequences[:, 1:].contiguous()
