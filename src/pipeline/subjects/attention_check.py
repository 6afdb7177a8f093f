"""Check an attention implementation against float64: output and gradients, at even and odd lengths."""

import inspect
import math
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

import torch
from torch import Tensor

from pipeline.attention.reference import allowed_errors, exact_attention
from pipeline.errors import Skipped
from pipeline.instruments.memory.out_of_memory import is_out_of_memory
from pipeline.parallel.processes.starting import RankContext
from pipeline.subjects.checking import REFUSALS, Verdict, Wrong, lacks
from pipeline.subjects.loading import load
from pipeline.subjects.naming import Subject

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]

# Powers of two, which the assignment asks for; and lengths that are no multiple of a tile, which it does not.
EVEN, ODD = (64, 256), (113, 321)
BATCH, HEADS = 2, 2
# Of each product, in unit roundoffs. The plain formula, which rounds scores, weights and their gradients, makes four.
ROUNDINGS = 8
# TF32 has 10 bits of fraction. In it multiply a Triton kernel's fp32 products where nobody asks for more.
TF32_EPS = 2.0**-10
QUANTITIES = ("output", "dq", "dk", "dv")
# What is said of a result that is right for attention without the mask.
IGNORES_MASK = "that is what attention without the causal mask gives"
# How far an output may lie from that of another mask to be taken for it: bf16 rounds to less, a key makes far more.
ABOUT = 0.03
# What a GPU says after which it does nothing more for this process.
POISON = re.compile(r"CUDA.*(illegal|misaligned|unspecified launch failure|device-side assert)", re.DOTALL)
# How to call: with (batch · heads, length, head_dim), which is the course's way, or with (batch, heads, ...).
WAYS = ("folded", "heads")
# Where heads of queries share keys: with fewer heads of keys, else with a copy of them for every head of queries.
SHARED = "shared"
COPIES = "it takes as many heads of keys as of queries: its time holds the copies that are made of shared ones"


def attention_of(subject: Subject, way: str, is_causal: bool, group: int = 1) -> Attend:
    """Import a subject and return it as a function of q, k and v of shape (batch, heads, length, head_dim).

    It is an autograd function or a function of (q, k, v, is_causal), whose is_causal may be keyword-only. group: heads
    of queries that share a head of keys and values; of those it gets copies, but in the way `shared`, with
    `enable_gqa=True` where it takes that. Raises Wrong where it is another class or takes other arguments.
    """
    function = load(subject.use)
    if isinstance(function, type):
        if not issubclass(function, torch.autograd.Function):
            raise Wrong(f"{function.__name__} is a class, but no torch.autograd.Function: name a function")
        function = function.apply
    mask, options = _options(function, is_causal)
    if way != SHARED:
        options.pop("enable_gqa", None)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        given = [q, k, v]
        if group > 1 and way != SHARED:
            given[1:] = (each.repeat_interleave(group, dim=1) for each in (k, v))
        if way != "folded":
            return function(*given, *mask, **options)
        output = function(*(each.flatten(0, 1) for each in given), *mask, **options)
        return output.view_as(q) if isinstance(output, Tensor) else output

    return attend


def _options(function: Callable[..., Tensor], is_causal: bool) -> tuple[tuple[bool, ...], dict[str, bool]]:
    """Return what a function takes behind q, k and v: the mask, by position or name, and `enable_gqa`, where it has it.

    is_causal may be keyword-only, as in torch's own attention; not of functions that hide their arguments. Raises Wrong
    where the function does not take (q, k, v, is_causal).
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of builtins
        return (is_causal,), {}
    taken = signature.parameters
    by_name = "is_causal" in taken and taken["is_causal"].kind is inspect.Parameter.KEYWORD_ONLY
    mask, options = ((), {"is_causal": is_causal}) if by_name else ((is_causal,), {})
    try:
        signature.bind(*"qkv", *mask, **options)
    except TypeError:
        raise Wrong(f"must take (q, k, v, is_causal), takes {signature}") from None
    return mask, options | ({"enable_gqa": True} if "enable_gqa" in taken else {})


def check_attention(
    context: RankContext,
    subject: Subject,
    dtype: torch.dtype,
    head_dim: int,
    is_causal: bool,
    seq_len: int = EVEN[0],
    group: int = 1,
) -> Verdict:
    """Check a subject for a cell: small problems of its dtype, head_dim, mask, kind of length and shared keys.

    group: heads of queries that share a head of keys and values. Raises Skipped where the subject refuses these.
    """
    return check_lengths(context, subject, dtype, head_dim, is_causal, (*EVEN, *odd_lengths_like(seq_len)), group)


def check_lengths(
    context: RankContext,
    subject: Subject,
    dtype: torch.dtype,
    head_dim: int,
    is_causal: bool,
    lengths: Sequence[int],
    group: int = 1,
) -> Verdict:
    """Check a subject at these lengths, each of its ways until one is right; Skipped where it refuses a length."""
    complaints: list[Exception] = []
    for way in (SHARED, *WAYS) if group > 1 else WAYS:
        attend = attention_of(subject, way, is_causal, group)
        try:
            for length in lengths:
                _check_length(attend, _inputs(length, head_dim, dtype, context.device, group), is_causal)
        except (Wrong, Skipped) as complaint:
            if way != SHARED:  # which none has to take
                complaints.append(complaint)
        else:
            return Verdict("ok", COPIES if group > 1 and way != SHARED else "", way)
    # A shape that it does not take says less than numbers that are off.
    told = next((each for each in complaints if isinstance(each, Wrong)), None)
    if told is None:
        raise complaints[0]
    return Verdict("wrong", str(told))


def is_power_of_two(length: int) -> bool:
    """Tell whether a length is one of those that every implementation has to take."""
    return not length & (length - 1)


def odd_lengths_like(seq_len: int) -> tuple[int, ...]:
    """Return lengths that are multiples of what a cell's is a multiple of, up to 64; of a power of two none."""
    if is_power_of_two(seq_len):
        return ()
    step = min(64, seq_len & -seq_len)
    return tuple(max(3, odd // step | 1) * step for odd in ODD)


def _check_length(attend: Attend, inputs: tuple[Tensor, ...], is_causal: bool) -> None:
    """Raise Wrong where an implementation is wrong at one problem, and Skipped where it refuses it.

    An exception is a refusal where the assignment does not ask for the problem: at odd lengths and beside fp32.
    """
    q = inputs[0]
    length, head_dim = q.shape[-2:]
    if "torch._dynamo" in sys.modules:  # what compiles itself meets few shapes in a cell: here each is the first
        torch.compiler.reset()
    try:
        results = _output_and_gradients(attend, *inputs)
        if wrong := _wrong(results, inputs, is_causal):
            mask = "causal" if is_causal else "no mask"
            raise Wrong(f"{wrong} (length {length}, head_dim {head_dim}, {mask})")
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
        if isinstance(error, REFUSALS) or not (is_fp32 and is_power_of_two(length)):
            refused = "" if is_fp32 else f"{q.dtype}, ".removeprefix("torch.")
            raise Skipped(f"refuses {refused}length {length}: {_told(error)}") from error
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(last.filename).name}:{last.lineno}"
        raise Wrong(f"raised {type(error).__name__} at length {length}: {_told(error)} ({place})") from error


class _Interpreted(BaseException):
    """Triton's interpreter was called."""


def _is_interpreted(attend: Attend, inputs: tuple[Tensor, ...]) -> bool:
    """Tell whether an implementation runs kernels in Triton's interpreter; it is called up to its first."""
    if "triton.runtime.interpreter" not in sys.modules:
        return False
    interpreter = sys.modules["triton.runtime.interpreter"].__file__

    def look(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and frame.f_code.co_filename == interpreter:
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
    """Call forward and backward; raises Wrong where that gives no tensors, or changes what it was given.

    At the first length that is its second call, with other numbers than before in the same tensors.
    """
    inputs, gradient = [tensor.flip(0).requires_grad_() for tensor in (q, k, v)], do.flip(0)
    if q.shape[-2] == EVEN[0]:
        _called(attend, inputs, gradient)
    with torch.no_grad():
        for tensor, numbers in zip((*inputs, gradient), (q, k, v, do), strict=True):
            tensor.copy_(numbers)
    results = _called(attend, inputs, gradient)
    for name, given, each in zip(
        ("q", "k", "v", "the output's gradient"), (q, k, v, do), (*inputs, gradient), strict=True
    ):
        if not torch.equal(given, each):
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


def _wrong(results: list[Tensor], inputs: tuple[Tensor, ...], is_causal: bool) -> str | None:
    """Say which of the results is off, how far, where, and how far rounding could bring it; None where none is."""
    q, k, v, do = inputs
    exact = exact_attention(q, k, v, do, is_causal)
    eps = TF32_EPS if q.dtype == torch.float32 and q.device.type == "cuda" else None
    allowed = _allowed(inputs, is_causal, eps)
    for name, result, bound in zip(QUANTITIES, results, allowed, strict=True):
        if (result.shape, result.dtype) != (bound.shape, q.dtype):
            return f"{name} is {tuple(result.shape)} of {result.dtype}, must be {tuple(bound.shape)} of {q.dtype}"
        off = (result.double() - getattr(exact, name)).abs()
        over = (off / bound).nan_to_num(nan=float("inf"))
        worst = int(over.argmax())
        if over.flatten()[worst] > 1:
            said = _told_off(name, result, off, over, worst)
            scaled = _multiple(result, getattr(exact, name), bound) or _of_call_before(
                result, getattr(exact, name), bound
            )
            shifted = _other_diagonal(result, inputs) if is_causal and name == "output" else ""
            return said + (scaled or shifted or _without_mask(name, result, inputs, is_causal, eps))
    return None


def _allowed(inputs: tuple[Tensor, ...], is_causal: bool, eps: float | None) -> list[Tensor]:
    """Bound the errors of output and gradients; those of shared keys and values add up over the heads of queries."""
    q, k, v, do = _with_copies(inputs)
    output, dq, *of_keys = allowed_errors(ROUNDINGS, q, k, v, do, is_causal, eps)
    return [output, dq, *(bound.unflatten(1, (inputs[1].shape[1], -1)).sum(2) for bound in of_keys)]


def _with_copies(inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Give every head of queries keys and values of its own."""
    q, k, v, do = inputs
    group = q.shape[1] // k.shape[1]
    return q, k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1), do


def _multiple(result: Tensor, wanted: Tensor, bound: Tensor) -> str:
    """Say by which factor a result is off, where it is by one and the same everywhere."""
    factor = (result.double() * wanted).sum() / wanted.square().sum()
    is_one = ((result.double() - factor * wanted).abs() <= bound * factor.abs().clamp(min=1)).all()
    return f"; everywhere it is {factor.item():.3g} times what it must be" if is_one else ""


def _of_call_before(result: Tensor, wanted: Tensor, bound: Tensor) -> str:
    """Say whether a result holds that of the call before, which had the batch in reverse."""
    before, either = wanted.flip(0), bound + bound.flip(0)
    if ((result - before).abs() <= either).all():
        return "; that is the result of the call before, which had other numbers in the same tensors"
    is_sum = ((result - before - wanted).abs() <= either).all()
    return "; that is the sum with the call before: is a buffer not cleared?" if is_sum else ""


def _without_mask(name: str, result: Tensor, inputs: tuple[Tensor, ...], is_causal: bool, eps: float | None) -> str:
    """Say whether a result that is off is right for attention without the causal mask."""
    if not is_causal:
        return ""
    q, k, v, do = inputs
    wanted = getattr(exact_attention(q, k, v, do, False), name)
    allowed = _allowed(inputs, False, eps)[QUANTITIES.index(name)]
    is_right = ((result.double() - wanted).abs() <= allowed).all()
    return f"; {IGNORES_MASK}" if is_right else ""


def _other_diagonal(output: Tensor, inputs: tuple[Tensor, ...]) -> str:
    """Say whether an output is about that of a causal mask which ends a key too early or too late."""
    q, k, v = (tensor.double() for tensor in _with_copies(inputs)[:3])
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    sees = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device)
    for diagonal, words in ((1, "each query sees one key after its own"), (-1, "no query sees its own key")):
        wanted = scores.masked_fill(~sees.tril(diagonal), -math.inf).softmax(-1) @ v
        # The first query may see no key, and then gives anything.
        if torch.allclose(output.double()[..., 1:, :], wanted[..., 1:, :], ABOUT, ABOUT):
            return f"; {words}: the causal mask is off by one"
    return ""


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
    """Return an error's words, or where there are none the line that raised it, as of a bare assert."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return str(error).partition("\n")[0] or f"{type(error).__name__} at `{last.line}`"


def is_of_triton(error: Exception) -> bool:
    """Tell whether an error was raised in Triton."""
    return any("/triton/" in frame.filename for frame in traceback.extract_tb(error.__traceback__))
