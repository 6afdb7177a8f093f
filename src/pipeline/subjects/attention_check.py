"""Check an attention implementation against float64: output and gradients, at even and odd lengths."""

import math
import re
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

import torch
from torch import Tensor

from pipeline.attention.reference import allowed_errors, exact_attention
from pipeline.errors import Skipped
from pipeline.instruments.memory.out_of_memory import is_out_of_memory
from pipeline.instruments.sampling.error_limits import TF32_EPS
from pipeline.parallel.processes.starting import RankContext
from pipeline.subjects.checking import REFUSALS, Verdict, Wrong, is_of_triton, lacks
from pipeline.subjects.loading import SHARED, WAYS, Attend, attention_of
from pipeline.subjects.naming import Subject

# Lengths: powers of two, which the assignment asks for, and others that are not a multiple of a tile.
EVEN, ODD = (64, 256), (113, 321)
BATCH, HEADS = 2, 2
# Allowed error of each product, in unit roundoffs. The plain formula makes four: it rounds scores, weights and their
# gradients.
ROUNDINGS = 8
GIVEN = ("q", "k", "v", "the output's gradient")
QUANTITIES = ("output", "dq", "dk", "dv")
# The complaint about a result that would be right without the mask.
IGNORES_MASK = "that is what attention without the causal mask gives"
# Mistakes in the scale: the power of head_dim that multiplies the scores instead of -1/2.
OTHER_SCALES = {0: "the scores are not divided by √head_dim", -1: "the scores are divided by head_dim, not its root"}
# Mistakes in the causal mask: by how many keys it ends too late.
OTHER_DIAGONALS = {1: "each query sees one key after its own", -1: "no query sees its own key"}
# Tolerance for recognising the output of another mask or scale: bf16 rounding changes less, one key far more.
ABOUT = 0.03
# CUDA errors after which this process can no longer use the GPU.
POISON = re.compile(r"CUDA.*(illegal|misaligned|unspecified launch failure|device-side assert)", re.DOTALL)
# The note for grouped queries if the implementation needs a copy of the keys for every query head.
COPIES = "it takes as many heads of keys as of queries: its time holds the copies that are made of shared ones"


def check_attention(
    context: RankContext,
    subject: Subject,
    dtype: torch.dtype,
    head_dim: int,
    is_causal: bool,
    lengths: Sequence[int] = EVEN,
    group: int = 1,
) -> Verdict:
    """Check a subject at these lengths, trying ways to call it until one is right; raises Skipped if it refuses all.

    group: query heads per key/value head.
    """
    complaints: list[Exception] = []
    for way in (SHARED, *WAYS) if group > 1 else WAYS:
        attend = attention_of(subject, way, is_causal, group)
        try:
            for length in lengths:
                _check_length(attend, _inputs(length, head_dim, dtype, context.device, group), is_causal)
        except (Wrong, Skipped) as complaint:
            if way != SHARED:  # which no subject has to support
                complaints.append(complaint)
        else:
            return Verdict("ok", COPIES if group > 1 and way != SHARED else "", way)
    # Wrong numbers say more than a refused shape.
    told = next((each for each in complaints if isinstance(each, Wrong)), None)
    if told is None:
        raise complaints[0]
    return Verdict("wrong", str(told))


def is_power_of_two(length: int) -> bool:
    """Tell whether a length is a power of two, which every implementation has to take."""
    return not length & (length - 1)


def lengths_like(seq_len: int) -> tuple[int, ...]:
    """Return the lengths to check for a cell: EVEN, plus two other lengths if its own is not a power of two."""
    if is_power_of_two(seq_len):
        return EVEN
    step = min(64, seq_len & -seq_len)  # divides the cell's length, and these
    return *EVEN, *(max(3, odd // step | 1) * step for odd in ODD)


def _check_length(attend: Attend, inputs: tuple[Tensor, ...], is_causal: bool) -> None:
    """Raise Wrong if an implementation is wrong on one problem, Skipped if it refuses it."""
    q = inputs[0]
    length = q.shape[-2]
    if "torch._dynamo" in sys.modules:  # compiled code sees fewer shapes in a cell than here: forget the others
        torch.compiler.reset()
    try:
        _compare(_output_and_gradients(attend, *inputs), inputs, is_causal)
    except Skipped:
        raise
    except Exception as error:
        if is_out_of_memory(error) or POISON.search(str(error)):
            raise
        if lacking := lacks(f"{type(error).__name__}: {error}"):
            raise Skipped(lacking) from error
        if q.device.type == "cpu" and is_of_triton(error):
            raise Skipped("needs a CUDA GPU: it is a Triton kernel") from error
        if q.dtype == torch.bfloat16 and _is_interpreted(attend, inputs):
            raise Skipped("bf16 waits for a GPU: Triton's interpreter multiplies it wrongly") from error
        if isinstance(error, Wrong):
            raise
        is_fp32 = q.dtype == torch.float32
        # The assignment asks for neither odd lengths nor dtypes other than fp32.
        if isinstance(error, REFUSALS) or not (is_fp32 and is_power_of_two(length)):
            refused = "" if is_fp32 else f"{q.dtype}, ".removeprefix("torch.")
            raise Skipped(f"refuses {refused}length {length}: {_told(error)}") from error
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(last.filename).name}:{last.lineno}"
        raise Wrong(f"raised {type(error).__name__} at length {length}: {_told(error)} ({place})") from error


class _Interpreted(BaseException):
    """Triton's interpreter was called."""


def _is_interpreted(attend: Attend, inputs: tuple[Tensor, ...]) -> bool:
    """Tell whether an implementation runs kernels in Triton's interpreter, by calling it until the first one starts."""
    interpreter = sys.modules.get("triton.runtime.interpreter")

    def look(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and frame.f_code.co_filename == getattr(interpreter, "__file__", ""):
            raise _Interpreted

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        attend(*inputs[:3])
    except _Interpreted:
        return True
    except Exception:
        return False
    finally:
        sys.setprofile(before)
    return False


def _inputs(length: int, head_dim: int, dtype: torch.dtype, device: torch.device, group: int = 1) -> tuple[Tensor, ...]:
    generator = torch.Generator(device).manual_seed(length)
    shapes = [(BATCH, heads, length, head_dim) for heads in (group * HEADS, HEADS, HEADS, group * HEADS)]
    return tuple(torch.randn(shape, generator=generator, device=device).to(dtype) for shape in shapes)


def _output_and_gradients(attend: Attend, q: Tensor, k: Tensor, v: Tensor, do: Tensor) -> list[Tensor]:
    """Call forward and backward; raises Wrong if a result is missing or an argument has changed."""
    *inputs, gradient = tensors = [each.flip(0).requires_grad_(each is not do) for each in (q, k, v, do)]
    if q.shape[-2] == EVEN[0]:  # first with other numbers in the same tensors, to find stale results
        _called(attend, inputs, gradient)
    with torch.no_grad():
        for tensor, numbers in zip(tensors, (q, k, v, do), strict=True):
            tensor.copy_(numbers)
    results = _called(attend, inputs, gradient)
    for name, tensor, numbers in zip(GIVEN, tensors, (q, k, v, do), strict=True):
        if not torch.equal(tensor, numbers):
            raise Wrong(f"changes {name} in place, which the caller still needs")
    return results


def _called(attend: Attend, inputs: list[Tensor], gradient: Tensor) -> list[Tensor]:
    output = attend(*inputs)
    if not isinstance(output, Tensor):
        raise Wrong(f"returns a {type(output).__name__}, must return the output alone, a tensor")
    if not output.requires_grad:
        raise Wrong("its output has no gradient: it is detached from q, k and v, or made without autograd")
    kept = output.detach().clone()
    try:
        gradients = torch.autograd.grad(output, inputs, gradient, allow_unused=True)
    except NotImplementedError as error:
        raise Skipped(f"its backward pass raises {_told(error)}") from error
    for name, each in zip(QUANTITIES[1:], gradients, strict=True):
        if each is None:
            raise Wrong(f"backward gives no {name}")
    return [kept, *gradients]


def _compare(results: list[Tensor], inputs: tuple[Tensor, ...], is_causal: bool) -> None:
    """Raise Wrong if a result is off by more than rounding explains, saying which, how far, where and probably why."""
    q, k, v, do = inputs
    exact = exact_attention(q, k, v, do, is_causal)
    problem = f" (length {q.shape[-2]}, head_dim {q.shape[-1]}, {'causal' if is_causal else 'no mask'})"
    for name, result, bound in zip(QUANTITIES, results, _allowed(inputs, is_causal), strict=True):
        if (result.shape, result.dtype) != (bound.shape, q.dtype):
            got, wanted = f"{tuple(result.shape)} of {result.dtype}", f"{tuple(bound.shape)} of {q.dtype}"
            raise Wrong(f"{name} is {got}, must be {wanted}{problem}")
        off = (result.double() - getattr(exact, name)).abs()
        over = (off / bound).nan_to_num(nan=float("inf"))
        worst = int(over.argmax())
        if over.flatten()[worst] > 1:
            found = result.double().nan_to_num()
            mistakes = _mistakes(name, getattr(exact, name), bound, found, inputs, is_causal)
            made = (f"; {words}" for words, mistaken, by in mistakes if ((found - mistaken).abs() <= by).all())
            raise Wrong(_told_off(name, result, off, over, worst) + next(made, "") + problem)


def _allowed(inputs: tuple[Tensor, ...], is_causal: bool) -> list[Tensor]:
    """Bound the errors of output and gradients; those of dk and dv are summed over the query heads that share a key."""
    q, k, v, do = _with_copies(inputs)
    eps = TF32_EPS if q.dtype == torch.float32 and q.device.type == "cuda" else None
    output, dq, *of_keys = allowed_errors(ROUNDINGS, q, k, v, do, is_causal, eps)
    return [output, dq, *(bound.unflatten(1, (inputs[1].shape[1], -1)).sum(2) for bound in of_keys)]


def _with_copies(inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Repeat keys and values so that every query head has its own."""
    q, k, v, do = inputs
    group = q.shape[1] // k.shape[1]
    return q, k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1), do


def _mistakes(
    name: str, wanted: Tensor, bound: Tensor, result: Tensor, inputs: tuple[Tensor, ...], is_causal: bool
) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield common mistakes: a description, the result that each would give, and how close to it counts as a match."""
    factor = (result * wanted).sum() / wanted.square().sum()
    words = f"everywhere it is {factor.item():.3g} times what it must be"
    yield words, factor * wanted, bound * factor.abs().clamp(min=1)
    before, either = wanted.flip(0), bound + bound.flip(0)
    yield "that is the result of the call before, which had other numbers in the same tensors", before, either
    yield "that is the sum with the call before: is a buffer not cleared?", before + wanted, either
    for power, words in OTHER_SCALES.items() if name == "output" else ():
        scaled = _attended(inputs, inputs[0].shape[-1] ** power, 1 if is_causal else None)
        yield words, scaled, ABOUT + ABOUT * scaled.abs()
    if not is_causal:
        return
    for diagonal, words in OTHER_DIAGONALS.items() if name == "output" else ():
        shifted = _attended(inputs, inputs[0].shape[-1] ** -0.5, 1 + diagonal)
        shifted[..., 0, :] = result[..., 0, :]  # the first query may see no key; its output is then arbitrary
        yield f"{words}: the causal mask is off by one", shifted, ABOUT + ABOUT * shifted.abs()
    q, k, v, do = inputs
    unmasked = getattr(exact_attention(q, k, v, do, is_causal=False), name)
    yield IGNORES_MASK, unmasked, _allowed(inputs, False)[QUANTITIES.index(name)]


def _attended(inputs: tuple[Tensor, ...], scale: float, first_hidden: int | None) -> Tensor:
    """Compute attention with another scale or mask; first_hidden: the first key that query 0 must not see, or None."""
    q, k, v = (tensor.double() for tensor in _with_copies(inputs)[:3])
    scores = scale * (q @ k.mT)
    if first_hidden is not None:
        scores.masked_fill_(torch.ones_like(scores, dtype=torch.bool).triu(first_hidden), -math.inf)
    return scores.softmax(-1) @ v


def _told_off(name: str, result: Tensor, off: Tensor, over: Tensor, worst: int) -> str:
    place = tuple(int(index) for index in torch.unravel_index(torch.tensor(worst), result.shape))
    rows = (over > 1).any(-1).flatten(end_dim=-2).any(0).nonzero().flatten()
    words, plural = ("query", "queries") if name in ("output", "dq") else ("key", "keys")
    times = over.flatten()[worst].item()
    far = f"{off.flatten()[worst].item():.2g}, {times:.3g} times what rounding explains," if times < 1e30 else "NaN"
    return (
        f"{name} is off by {far} at {place} (batch, head, {words}, dimension); first at {words} {int(rows[0])}, "
        f"at {len(rows)} of {result.shape[-2]} {plural}"
    )


def _told(error: Exception) -> str:
    """Return an error's message, or the line that raised it if it has none, like a bare assert."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return str(error).partition("\n")[0] or f"{type(error).__name__} at `{last.line}`"
