"""Problems for operations between matrix products: seeded inputs, exact results in fp64, and errors against them."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from pipeline.formulas.operations import Widths
from pipeline.model.operations import DIFFERENTIABLE
from pipeline.model.transformer import RMS_NORM_EPS, RotaryEmbedding

IGNORE_INDEX = -100
# One target in this many is ignored, like padding.
IGNORED_EVERY = 8
# Weights are as small as a model's; the learning rate moves them by more than bf16's rounding.
WEIGHT_STD = 0.02
ADAMW: dict[str, Any] = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.1}
# Rows whose fp64 logits exist at once.
CHUNK_ROWS = 1024
# Errors are divided by at least this, so that a zero norm gives a finite result.
TINY = 1e-30


class Errors(NamedTuple):
    """The largest errors of results against the exact ones.

    rel: L2 norm of the error over that of the exact result; top: the largest error of an element over the exact
    result's root mean square. Errors of an update are relative to how far it moves the weights.
    """

    rel: float
    top: float


class Exact(NamedTuple):
    """Exact outputs and gradients of the inputs; for AdamW, the weights after a step and how far they moved."""

    outputs: tuple[Tensor, ...]
    gradients: tuple[Tensor, ...]
    scales: tuple[Tensor, ...] = ()


class Problem:
    """One call of an operation.

    inputs: the tensors that get gradients, or AdamW's weights; constants: the arguments after them; gradients: of the
    outputs, or of AdamW's weights. `draw` fills all of them; `restore` undoes what a call changes.
    """

    def __init__(self, operation: str, widths: Widths, dtype: torch.dtype, device: torch.device) -> None:
        self.operation, self.widths, self.dtype, self.device = operation, widths, dtype, device
        shapes, views = _SHAPES[operation](widths)
        self.inputs = tuple(self._empty(shape, views).requires_grad_() for shape in shapes)
        self.constants = _constants(operation, widths, device)
        self.gradients = self._gradients()
        self._kept: list[Tensor] = []
        self._exact: Exact | None = None

    def _empty(self, shape: Sequence[int], by_token: bool = False) -> Tensor:
        found = torch.empty(shape, dtype=self.dtype, device=self.device)
        return found.transpose(1, 2) if by_token else found

    def _gradients(self) -> tuple[Tensor, ...]:
        if self.operation == "linear_cross_entropy":
            return (torch.ones((), device=self.device),)
        wanted = {"rms_norm": self.inputs[:2], "swiglu": self.inputs[:1]}.get(self.operation, self.inputs)
        return tuple(torch.empty_like(each) for each in wanted)

    @property
    def exact(self) -> Exact:
        """The exact results for the last draw."""
        if self._exact is None:
            count = len(self.inputs)
            compute = _EXACT.get(self.operation) or partial(_exact_by_autograd, DIFFERENTIABLE[self.operation])
            self._exact = compute(self._kept[:count], self.constants, self._kept[count:])
        return self._exact

    @torch.no_grad()
    def draw(self, seed: int, scale: float = 1.0, zeros: bool = False) -> None:
        """Fill all tensors with new random numbers; scale: of activations; zeros: set the inputs' first rows to 0."""
        generator = torch.Generator(self.device).manual_seed(seed)

        def normal(tensor: Tensor, std: float = 1.0) -> None:
            tensor.copy_(std * torch.randn(tensor.shape, generator=generator, device=self.device))

        for place, tensor in enumerate(self.inputs):
            normal(tensor, self._std(place, scale))
            if zeros and tensor.dim() > 1:
                tensor[0] = 0
        if not self._is_head:
            for tensor in self.gradients:
                normal(tensor)
        else:
            targets = self.constants[0]
            targets.copy_(torch.randint(self.widths.vocab_size, targets.shape, generator=generator, device=self.device))
            targets[::IGNORED_EVERY] = IGNORE_INDEX
        self._kept = [tensor.detach().clone() for tensor in (*self.inputs, *self.gradients)]
        self._exact = None

    def _std(self, place: int, scale: float) -> float:
        if self.operation == "adamw" or (self._is_head and place == 1):
            return WEIGHT_STD
        return 1.0 if self.operation == "rms_norm" and place == 2 else scale

    @property
    def _is_head(self) -> bool:
        return self.operation == "linear_cross_entropy"

    @torch.no_grad()
    def restore(self) -> None:
        """Put back the last draw: some implementations write results over their inputs."""
        for tensor, numbers in zip((*self.inputs, *self.gradients), self._kept, strict=True):
            tensor.copy_(numbers)

    @torch.no_grad()
    def change_signs(self) -> None:
        """Negate the numbers that `restore` puts back, so that the next call gets other inputs."""
        for numbers in self._kept if not self._is_head else self._kept[:1]:
            numbers.neg_()
        self._exact = None

    def output_errors(self, outputs: Sequence[Tensor]) -> Errors:
        """Return the errors of outputs; for AdamW, of the weights after one step."""
        return _errors(outputs, self.exact.outputs, self.exact.scales)

    def gradient_errors(self, gradients: Sequence[Tensor]) -> Errors:
        """Return the errors of the inputs' gradients."""
        return _errors(gradients, self.exact.gradients)


def _by_token(widths: Widths) -> tuple[list[tuple[int, ...]], bool]:
    size, sequences = widths.size, (widths.batch_size, widths.seq_len)
    heads = [width // size.head_dim for width in (size.attention_width, size.kv_width)]
    return [(*sequences, each, size.head_dim) for each in heads], True


def _block(widths: Widths) -> list[tuple[int, ...]]:
    size = widths.size
    d, q, kv, f = size.d_model, size.attention_width, size.kv_width, size.d_ff
    return [(q, d), (kv, d), (kv, d), (d, q), (f, d), (f, d), (d, f), (d,), (d,)]


# Shapes of the inputs, and whether they are views of rows of tokens, as projections leave queries and keys.
_SHAPES: dict[str, Callable[[Widths], tuple[Sequence[tuple[int, ...]], bool]]] = {
    "rms_norm": lambda w: ([*[(w.tokens, w.size.d_model)] * 2, (w.size.d_model,)], False),
    "rotary": _by_token,
    "swiglu": lambda w: ([(w.tokens, w.size.d_ff)] * 2, False),
    "linear_cross_entropy": lambda w: ([(each, w.size.d_model) for each in (w.tokens, w.vocab_size)], False),
    "adamw": lambda w: (_block(w), False),
}


def _constants(operation: str, widths: Widths, device: torch.device) -> tuple[Any, ...]:
    match operation:
        case "rms_norm":
            return (RMS_NORM_EPS,)
        case "rotary":
            with device:
                tables = RotaryEmbedding(widths.size.head_dim, widths.seq_len)
            return tables.cos, tables.sin
        case "linear_cross_entropy":
            return torch.empty(widths.tokens, dtype=torch.int64, device=device), IGNORE_INDEX
    return ()


def as_tuple(found: Any) -> tuple[Any, ...]:
    """Return a call's result as a tuple."""
    return tuple(found) if isinstance(found, tuple | list) else (found,)


def _exact_by_autograd(
    function: Callable[..., Any], inputs: Sequence[Tensor], constants: Sequence[Any], gradients: Sequence[Tensor]
) -> Exact:
    """Compute the plain operation and its gradients in fp64."""
    doubles = [tensor.double().requires_grad_() for tensor in inputs]
    outputs = as_tuple(function(*doubles, *constants))
    found = torch.autograd.grad(outputs, doubles, [gradient.double() for gradient in gradients])
    return Exact(tuple(output.detach() for output in outputs), found)


def _exact_loss(inputs: Sequence[Tensor], constants: Sequence[Any], gradients: Sequence[Tensor]) -> Exact:
    """Compute loss and gradients in fp64, some rows at a time, because all logits would not fit."""
    (x, weight), (targets, ignored), (factor,) = inputs, constants, gradients
    head, count = weight.double(), (targets != ignored).sum()
    loss, dx, dweight = (torch.zeros(s, dtype=torch.float64, device=x.device) for s in ((), x.shape, weight.shape))
    for start in range(0, len(x), CHUNK_ROWS):
        rows, wanted = x[start : start + CHUNK_ROWS].double(), targets[start : start + CHUNK_ROWS]
        logits = rows @ head.T
        loss += functional.cross_entropy(logits, wanted, ignore_index=ignored, reduction="sum") / count
        logits = logits.softmax(-1)
        counted = wanted != ignored
        logits[counted.nonzero().flatten(), wanted[counted]] -= 1
        logits *= counted[:, None] * factor.double() / count
        dx[start : start + CHUNK_ROWS] = logits @ head
        dweight += logits.T @ rows
    return Exact((loss,), (dx, dweight))


def _exact_step(inputs: Sequence[Tensor], _constants: Sequence[Any], gradients: Sequence[Tensor]) -> Exact:
    """Compute AdamW's first step in fp64 (Loshchilov and Hutter 2019, algorithm 2): the moments cancel to g / |g|."""
    lr, eps, decay = ADAMW["lr"], ADAMW["eps"], ADAMW["weight_decay"]
    pairs = [(weight.double(), gradient.double()) for weight, gradient in zip(inputs, gradients, strict=True)]
    moved = tuple(-lr * decay * weight - lr * g / (g.abs() + eps) for weight, g in pairs)
    return Exact(tuple(weight + move for (weight, _), move in zip(pairs, moved, strict=True)), (), moved)


_EXACT: dict[str, Callable[..., Exact]] = {"linear_cross_entropy": _exact_loss, "adamw": _exact_step}


def _errors(found: Sequence[Tensor], exact: Sequence[Tensor], scales: Sequence[Tensor] = ()) -> Errors:
    worst = Errors(0.0, 0.0)
    for each, wanted, scale in zip(found, exact, scales or exact, strict=True):
        off = each.detach().double() - wanted
        norm = scale.norm().clamp(min=TINY)
        rel, top = off.norm() / norm, off.abs().max() / (norm / scale.numel() ** 0.5)
        pair = zip((rel, top), worst, strict=True)
        worst = Errors(*(max(new.nan_to_num(nan=float("inf")).item(), old) for new, old in pair))
    return worst
