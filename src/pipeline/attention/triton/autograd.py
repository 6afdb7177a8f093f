"""FlashAttention-2 in Triton kernels, as an autograd function.

On small inputs the GPU finishes before Python has launched the next kernel. So everything that depends only on
shapes, strides and dtypes (checks, tiles, grids, compiled kernels) is computed once and cached: see `forward_plan`
and `backward_plan`.
"""

from functools import partial
from typing import Any, Literal, overload

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.compiler import is_compiling, is_dynamo_compiling

from pipeline.attention.inputs import under_autocast
from pipeline.attention.triton.backward_plan import backward_plan
from pipeline.attention.triton.forward_plan import forward_plan
from pipeline.attention.triton.mask import Causal
from pipeline.attention.triton.problem import check_kinds, problem_of
from pipeline.attention.triton.running import run_backward, run_forward
from pipeline.attention.triton.tiles import Choices
from pipeline.compat.torch_private import are_functorch_transforms_active, is_in_torch_dispatch_mode
from pipeline.tf32 import allows_tf32


@overload
def flash_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    is_causal: Causal = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    window: int | None = None,
    return_lse: Literal[False] = False,
) -> Tensor: ...
@overload
def flash_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    is_causal: Causal = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    window: int | None = None,
    *,
    return_lse: Literal[True],
) -> tuple[Tensor, Tensor]: ...
def flash_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    is_causal: Causal = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    window: int | None = None,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Compute attention with FlashAttention-2 in Triton kernels, on a GPU; under autocast in its dtype.

    `is_causal`, `scale` and `enable_gqa` mean what they mean in `torch.nn.functional.scaled_dot_product_attention`.
    Pass them by name: torch's fourth positional argument is a mask, which this function does not take. Shapes: see
    `FlashAttentionTriton`.

    is_causal: if True, query i sees keys up to the i-th; if "bottom_right", up to the (i + n_keys - n_queries)-th, so
    that the last query sees all keys, as in decoding and after a cached prefix. scale: multiplies the scores; a number
    above 0, not a tensor; 1 / √head_dim by default. enable_gqa: k and v may have fewer heads than q, each serving the
    same number of consecutive query heads; none is copied. window: an int; a query sees only keys closer than this to
    its position, the last key it would see if causal. return_lse: return the log-sum-exp too, which has no gradient. A
    query that sees no key gets an output of 0 and a log-sum-exp of -∞.

    Raises ValueError for unsupported inputs.
    """
    q, k, v = under_autocast(q, k, v)
    return FlashAttentionTriton.apply(q, k, v, is_causal, scale, enable_gqa, window, return_lse)


class FlashAttentionTriton(torch.autograd.Function):
    """Compute softmax(q kᵀ · scale) v without the score matrix in memory, forward and backward.

    `apply(q, k, v, is_causal, ...)` takes the arguments of `flash_attention` by position. Shapes: q and the result are
    (batch, n_queries, head_dim) or (batch, heads, n_queries, head_dim), k and v the same with n_keys; none may be
    empty. head_dim is at most 256; the plain kernels pad it to the next power of two. Dtypes: fp32, bf16, fp16. Strides
    may be any, but a tensor is copied if its rows are not contiguous or its address is not a multiple of 16 bytes. Kept
    for the backward pass: q, k, v, the output, and the log-sum-exp of each query's scores (natural logarithm, fp32,
    shape of q without head_dim).

    On a GPU, fp32 is multiplied as three TF32 products, or on Hopper, if there is enough work (`kernel_sets`), as six
    products of bf16 parts, which take another 1.5 times the memory of the tensors they split. Either keeps the errors'
    L2 norm within 1.1 times that of torch's own fp32 kernel, `SDPBackend.EFFICIENT_ATTENTION` (1.15 times at head_dim
    128 if scores are in the hundreds). It is one TF32 product if torch's own switch allows that at the forward pass:
    `torch.backends.cuda.matmul.fp32_precision`, or the older `torch.set_float32_matmul_precision`. With an infinite
    fp32 key or value all these products are NaN, where torch has an infinity or a number. AMD GPUs multiply fp32
    natively. Everything but dq is bitwise repeatable; dq is too if it has its own kernel, else it is summed in fp32 in
    no fixed order (`tile_tables`).

    Raises ValueError for an unsupported shape, dtype or device, such as an old GPU (`gpu`). Source: Dao 2023,
    FlashAttention-2.
    """

    @classmethod
    def apply(cls, q: Tensor, k: Tensor, v: Tensor, is_causal: Causal = False, *others: Any) -> Any:
        """Compute the output; see the class."""
        if is_dynamo_compiling():
            return cls.apply(q, k, v, is_causal, *others)  # to Dynamo this is autograd's own `apply`
        if are_functorch_transforms_active():
            raise RuntimeError(NO_TRANSFORMS)
        # Skip what autograd's own `apply` does only for those transforms: it takes a tenth of a small call's time.
        # The base class is written in C and missing from torch's stubs.
        return super(torch.autograd.Function, cls).apply(q, k, v, is_causal, *others)  # type: ignore[misc]

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        is_causal: Causal = False,
        scale: float | None = None,
        enable_gqa: bool = False,
        window: int | None = None,
        return_lse: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Compute the output and keep what the backward pass needs."""
        # Operators only for torch.compile and dispatch modes, which need them (selective checkpointing is one): their
        # dispatch would double the time of a call on small inputs.
        if is_compiling() or is_in_torch_dispatch_mode():
            check_kinds(is_causal, scale, window)  # the operator's arguments would hide their types
            ctx.problem = None
            # Read torch's switch now: it may change before the backward pass, but scores must round the same there.
            is_one_product = q.dtype == torch.float32 and _allows_tf32()
            ctx.arguments = bool(is_causal), is_causal == "bottom_right", scale, enable_gqa, window, is_one_product
            o, lse = _forward_operator(q, k, v, *ctx.arguments)
        else:
            ctx.problem = problem = problem_of(q, k, v, is_causal, scale, enable_gqa, window)
            o, lse = run_forward(problem, q, k, v)
        ctx.save_for_backward(q, k, v, o, lse)
        if not return_lse:
            return o
        ctx.mark_non_differentiable(lse)
        return o, lse

    @staticmethod
    def backward(ctx: Any, do: Tensor, _dlse: Tensor | None = None) -> tuple[Tensor | None, ...]:
        """Compute the gradients of q, k and v from that of the output, recomputing the scores."""
        # `once_differentiable` only matters if the gradients get a graph; otherwise it just costs time.
        return (_gradients_once if torch.is_grad_enabled() else _gradients)(ctx, do, *ctx.saved_tensors)


# q, k, v, the output and the log-sum-exp.
Saved = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
# No other argument has a gradient.
NO_GRADIENTS = (None,) * 5
NO_TRANSFORMS = (
    "FlashAttentionTriton has none of the functorch transforms (vmap, grad, jvp): "
    "make what is mapped over part of the batch, and take gradients with torch.autograd"
)


def _gradients(ctx: Any, do: Tensor, *saved: *Saved) -> tuple[Tensor | None, ...]:
    # The saved tensors are arguments so that `once_differentiable` sees their graph: `do` has none if the loss is
    # linear in the output.
    if ctx.problem is None:
        return (*_backward_operator(*saved, do, *ctx.arguments), *NO_GRADIENTS)
    return (*run_backward(ctx.problem, *saved, do), *NO_GRADIENTS)


_gradients_once = once_differentiable(_gradients)
# Dynamo cannot trace `allows_tf32`; it recompiles when the switch has changed.
_allows_tf32 = torch.compiler.assume_constant_result(allows_tf32)


def planned_by(choices: Choices) -> type[FlashAttentionTriton]:
    """Return the autograd function planned with other choices than `IN_USE`; it does not support torch.compile."""
    forward_planner = partial(forward_plan, choices=choices)
    backward_planner = partial(backward_plan, choices=choices)

    class Planned(FlashAttentionTriton):
        @staticmethod
        def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, *arguments: Any) -> Tensor:
            ctx.problem = problem = problem_of(q, k, v, *arguments)
            ctx.arguments = arguments
            o, lse = run_forward(problem, q, k, v, forward_planner)
            ctx.save_for_backward(q, k, v, o, lse)
            return o

        @staticmethod
        @once_differentiable
        def backward(ctx: Any, do: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]  # of one output
            saved: Saved = ctx.saved_tensors
            gradients = run_backward(ctx.problem, *saved, do, backward_planner)
            return (*gradients, *(None for _ in ctx.arguments))

    return Planned


@torch.library.custom_op("llm_systems_pipeline::flash_attention_forward", mutates_args=())
def _forward_operator(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    is_causal: bool,
    bottom_right: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    window: int | None = None,
    one_tf32_product: bool = False,
) -> tuple[Tensor, Tensor]:
    mask = _mask(is_causal, bottom_right)
    return run_forward(problem_of(q, k, v, mask, scale, enable_gqa, window, one_tf32_product), q, k, v)


@_forward_operator.register_fake
def _(q: Tensor, _k: Tensor, _v: Tensor, *_arguments: Any) -> tuple[Tensor, Tensor]:
    return q.new_empty(q.shape), q.new_empty(q.shape[:-1], dtype=torch.float32)


@torch.library.custom_op("llm_systems_pipeline::flash_attention_backward", mutates_args=())
def _backward_operator(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    do: Tensor,
    is_causal: bool,
    bottom_right: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    window: int | None = None,
    one_tf32_product: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    problem = problem_of(q, k, v, _mask(is_causal, bottom_right), scale, enable_gqa, window, one_tf32_product)
    with torch.cuda.device_of(q):
        dq, dk, dv = run_backward(problem, q, k, v, o, lse, do)
    # An operator's results must not share memory, but dk and dv of a long sequence are halves of one tensor.
    return dq, dk, dv.clone() if dv.storage_offset() else dv


@_backward_operator.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, _o: Tensor, _lse: Tensor, _do: Tensor, *_arguments: Any
) -> tuple[Tensor, Tensor, Tensor]:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _mask(is_causal: bool, bottom_right: bool) -> Causal:
    """Return `is_causal` from an operator's two arguments, which have one type each."""
    return "bottom_right" if bottom_right else is_causal
