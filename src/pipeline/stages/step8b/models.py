"""The training steps that are compared: torch's own parts and the fused model, sharded over the ranks."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional
from torch.utils.checkpoint import checkpoint, noop_context_fn

from pipeline.attention import ATTENTION, AttentionFunction
from pipeline.attention.functions import why_not
from pipeline.formulas.sizes import SIZES, ModelSize
from pipeline.model.checkpointing import keeping_attention
from pipeline.model.fused.language_model import FusedBlock, FusedLM, LossHead
from pipeline.model.fused.operations import best_operations
from pipeline.model.transformer import TransformerLM
from pipeline.parallel import FSDP
from pipeline.stages.step8b.cell import COMPILED, OURS, SELECTIVE, Cell, Settings

COMPUTE_DTYPE = torch.bfloat16
UNITS = (nn.Embedding, FusedBlock, LossHead)


@dataclass
class Training:
    """A sharded model with its optimizer and a batch, in phases; `fused` is the fused model inside, if any.

    Shapes: tokens and targets are (1, seq_len) int64. Call the phases in their order.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    tokens: Tensor
    targets: Tensor
    fused: FusedLM | None = None
    finish_gradients: Callable[[], object] = field(default=lambda: None)

    @property
    def phases(self) -> dict[str, Callable[[], object]]:
        """The phases of a step by name, in order."""
        return {
            "forward": self.forward,
            "backward": lambda: self.loss.backward(),
            "communication": self.finish_gradients,
            "optimizer": self.update,
        }

    def forward(self) -> None:
        """Compute the loss."""
        self.loss = self.model(self.tokens, self.targets)

    def update(self) -> None:
        """Update the weights and drop the gradients and the graph."""
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.loss = self.loss.detach()

    def run(self) -> Tensor:
        """Run a step; return its loss, before the update."""
        for phase in self.phases.values():
            phase()
        return self.loss


class TorchParts(nn.Module):
    """A `TransformerLM` and its loss, of torch's own parts; to fit, each block and chunk of the loss is checkpointed.

    is_selective: the blocks' checkpoints keep attention's output.
    """

    def __init__(self, model: TransformerLM, loss_chunk: int, is_selective: bool) -> None:
        super().__init__()
        self.model, self.loss_chunk = model, loss_chunk
        self.context = keeping_attention if is_selective else noop_context_fn

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Compute the mean cross-entropy in nats; tokens and targets are (batch, seq_len)."""
        x = self.model.token_embedding(tokens)
        for layer in self.model.layers:
            x = checkpoint(layer, x, use_reentrant=False, preserve_rng_state=False, context_fn=self.context)
        rows, targets = self.model.final_norm(x).flatten(0, 1), targets.flatten()
        pieces = zip(rows.split(self.loss_chunk), targets.split(self.loss_chunk), strict=True)
        losses = [checkpoint(self._loss, *piece, use_reentrant=False, preserve_rng_state=False) for piece in pieces]
        return torch.stack(losses).sum() / targets.numel()

    def _loss(self, rows: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(self.model.lm_head(rows).float(), targets, reduction="sum")


def build(
    impl: str, cell: Cell, settings: Settings, device: torch.device, rank: int, levels: Sequence[str]
) -> Training:
    """Build an implementation's step; all have the same weights in fp32, one batch per rank, and fused AdamW.

    levels: what each layer keeps, if the implementation is ours.
    """
    plain = plain_model(SIZES[cell.size], settings.vocab_size, cell.context_length, "sdpa", device)
    fused = None
    if impl in OURS:
        fused = FusedLM(plain, best_operations(device), best_attention(device), levels, settings.loss_chunk)
    model = _sharded(fused, impl) if fused else _torch_parts(plain, impl, settings.loss_chunk)
    finish = model.finish_gradient_synchronization if isinstance(model, FSDP) else lambda: None
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate, fused=True)
    batch = random_batch(settings.vocab_size, cell.context_length, device, seed=rank)
    return Training(model, optimizer, *batch, fused, finish)


def _sharded(fused: FusedLM, impl: str) -> nn.Module:
    if impl == "ours":
        return FSDP(fused, COMPUTE_DTYPE, shard=lambda module: isinstance(module, UNITS))
    # Modules that share a weight must be in one unit; with fully_shard that is the whole model, the last one.
    is_tied = fused.token_embedding.weight is fused.head.lm_head.weight
    units = (FusedBlock,) if is_tied else UNITS
    return _sharded_by_torch(fused, [module for module in fused.modules() if isinstance(module, units)])


def _torch_parts(plain: TransformerLM, impl: str, loss_chunk: int) -> nn.Module:
    if impl in COMPILED:
        for layer in plain.layers:
            layer.compile()
    return _sharded_by_torch(TorchParts(plain, loss_chunk, impl in SELECTIVE), plain.layers)


def _sharded_by_torch(model: nn.Module, units: Iterable[nn.Module]) -> nn.Module:
    policy = MixedPrecisionPolicy(param_dtype=COMPUTE_DTYPE, reduce_dtype=COMPUTE_DTYPE)
    for module in (*units, model):
        fully_shard(module, mp_policy=policy)
    return model


def plain_model(
    size: ModelSize, vocab_size: int, context_length: int, attention: str, device: torch.device
) -> TransformerLM:
    """Build the plain model on a device, with the same weights each time."""
    torch.manual_seed(0)
    with torch.device(device):
        return TransformerLM(vocab_size, context_length, attention=attention, **size.widths())


def random_batch(vocab_size: int, seq_len: int, device: torch.device, seed: int) -> tuple[Tensor, Tensor]:
    """Draw a sequence of tokens and their successors, (1, seq_len) each."""
    generator = torch.Generator().manual_seed(seed)
    sequence = torch.randint(vocab_size, (1, seq_len + 1), generator=generator).to(device)
    return sequence[:, :-1].contiguous(), sequence[:, 1:].contiguous()


def best_attention(device: torch.device) -> AttentionFunction:
    """Return our attention if the device supports it, else torch's."""
    return ATTENTION["sdpa" if why_not("flash", device) else "flash"]
