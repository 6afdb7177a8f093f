"""What is divided over ranks: one block's forward and backward pass, or a whole training step."""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from pipeline.attention import ATTENTION
from pipeline.formulas.sizes import SIZES, ModelSize
from pipeline.instruments.sampling.step_timing import Phases
from pipeline.model.precision import matmul_precision, precision_context
from pipeline.model.step import TrainingStep, build_training_step
from pipeline.model.transformer import RotaryEmbedding, TransformerBlock
from pipeline.stages.tensor_parallel.cell import Cell, Settings

SEED = 0


@dataclass
class BlockStep:
    """Run one block forward and backward; its loss is the mean square of its output.

    Shapes: inputs is (batch, seq_len, d_model), or this rank's part of it. loss_scale: the factor on the sum of this
    rank's squares.
    """

    model: nn.Module
    inputs: Tensor
    precision: str
    loss_scale: float
    _loss: Tensor | None = field(default=None, init=False, repr=False)

    def forward(self) -> Tensor:
        """Return this rank's part of the loss."""
        self.discard()
        with precision_context(self.precision, self.inputs.device.type):
            out = self.model(self.inputs)
        self._loss = out.float().square().sum() * self.loss_scale
        return self._loss

    def backward(self) -> None:
        """Compute the gradients of the block and of its input."""
        assert self._loss is not None, "backward() needs a forward() before it"
        with matmul_precision(self.precision):
            self._loss.backward()
        self._loss = None

    def discard(self) -> None:
        """Drop the loss with its graph, and the gradients."""
        self._loss = self.inputs.grad = None
        self.model.zero_grad()

    def run(self) -> None:
        """Run both passes."""
        self.forward()
        self.backward()


Step = BlockStep | TrainingStep


def phases(step: Step) -> Phases:
    """Return the phases of a step in order."""
    both = {"forward": step.forward, "backward": step.backward}
    return both if isinstance(step, BlockStep) else {**both, "optimizer": step.optimizer_step}


def inputs_of(step: Step) -> Tensor:
    """Return what a step computes with: tokens, or the input of a block."""
    return step.inputs if isinstance(step, BlockStep) else step.tokens


def build_whole(cell: Cell, settings: Settings, device: torch.device) -> Step:
    """Build the undivided step of one process, with the same weights and batch on every rank."""
    size = SIZES[cell.size]
    if cell.what == "block":
        return _block_step(size, cell, device)
    return build_training_step(
        size,
        vocab_size=settings.vocab_size,
        context_length=cell.context_length,
        batch_size=cell.batch_size,
        precision=cell.precision,
        device=device,
        attention="sdpa",
        seed=SEED,
    )


def _block_step(size: ModelSize, cell: Cell, device: torch.device) -> BlockStep:
    torch.manual_seed(SEED)
    with torch.device(device):
        rope = RotaryEmbedding(size.head_dim, cell.context_length)
        kv_heads = size.kv_width // size.head_dim
        heads = size.num_heads, kv_heads, size.head_dim
        block = TransformerBlock(size.d_model, *heads, size.d_ff, rope, ATTENTION["sdpa"])
    generator = torch.Generator(device).manual_seed(SEED)
    inputs = torch.randn(cell.batch_size, cell.context_length, size.d_model, generator=generator, device=device)
    return BlockStep(block, inputs.requires_grad_(), cell.precision, loss_scale=1 / inputs.numel())
