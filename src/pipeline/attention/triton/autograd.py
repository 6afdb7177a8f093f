"""FlashAttention-2 in Triton kernels, as an autograd function.

On small inputs the GPU is done before Python has launched the next kernel. So whatever follows from shapes alone
(checks, tiles, grids, compiled kernels) is worked out once a shape and kept: `forward_plan` and
`backward_plan`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.accelerator import current_device_index
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.compiler import is_compiling, is_dynamo_compiling

from pipeline.attention.inputs import under_autocast
from pipeline.attention.triton.backward_plan import BackwardPlan, ChunkedLaunch, ShortBackwardPlan, backward_plan
from pipeline.attention.triton.forward_plan import ForwardPlan, forward_plan
from pipeline.attention.triton.layouts import ALIGNMENT_BYTES, dense, layouts_of, ready
from pipeline.attention.triton.problem import Problem, problem_of
from pipeline.attention.triton.tiles import Choices
from pipeline.compat.torch_private import are_functorch_transforms_active, is_in_torch_dispatch_mode


def flash_attention(q: Tensor, k: Tensor, v: Tensor, is_causal: bool) -> Tensor:
    """Compute attention by FlashAttention-2 in Triton kernels, on a GPU; under autocast in its dtype."""
    q, k, v = under_autocast(q, k, v)
    return FlashAttentionTriton.apply(q, k, v, is_causal)


class FlashAttentionTriton(torch.autograd.Function):
    """Compute softmax(q kᵀ / √head_dim) v without the score matrix in memory, forward and backward.

    `apply(q, k, v, is_causal)`. Shapes: q and the result are (batch, n_queries, head_dim) or (batch, heads, n_queries,
    head_dim), k and v are alike with n_keys; head_dim is a multiple of 8 from 8 to 256, and costs what the next power
    of two costs; fp32, bf16 or fp16, strided as they may be, but copied where a row's elements lie apart or the address
    is no multiple of 16 bytes. Causal: query i attends to key j where j <= i. Kept for the backward pass: q, k, v, the
    output, and the log-sum-exp of each query's scores (natural logarithm, fp32, shape of q without head_dim).

    fp32 is multiplied on a GPU as three TF32 products, which keeps the errors' L2 norm within 1.1 times that of torch's
    own fp32 kernel, `SDPBackend.EFFICIENT_ATTENTION`; as one where torch's own switch allows it, which is
    `torch.backends.cuda.matmul.fp32_precision` or the older `torch.set_float32_matmul_precision`. Everything but dq is
    bitwise repeatable; dq is where it has a kernel of its own, else it is summed in fp32 in no fixed order
    (`tiles`).

    Raises ValueError for a shape, dtype or device that it cannot do. Source: Dao 2023, FlashAttention-2.
    """

    @classmethod
    def apply(cls, q: Tensor, k: Tensor, v: Tensor, is_causal: bool = False) -> Tensor:
        """Compute the output; see the class."""
        if is_dynamo_compiling():
            return cls.apply(q, k, v, is_causal)  # which Dynamo does not take for this function, but for autograd's
        if are_functorch_transforms_active():
            return super().apply(q, k, v, is_causal)  # which says what they lack
        # Past what autograd's own does for those transforms alone, a tenth of a small call.
        return super(torch.autograd.Function, cls).apply(q, k, v, is_causal)

    @staticmethod
    def forward(ctx: FunctionCtx, q: Tensor, k: Tensor, v: Tensor, is_causal: bool = False) -> Tensor:
        """Compute the output and keep what the backward pass needs."""
        # As operators only for torch.compile and for modes that must see them, as selective checkpointing does: their
        # dispatch would double the time of a call on small inputs.
        if is_compiling() or is_in_torch_dispatch_mode():
            ctx.problem, ctx.is_causal = None, is_causal
            o, lse = _forward_operator(q, k, v, is_causal)
        else:
            ctx.problem = problem = problem_of(q, k, v, is_causal)
            o, lse = _forward(problem, q, k, v)
        ctx.save_for_backward(q, k, v, o, lse)
        return o

    @staticmethod
    def backward(ctx: Any, do: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        """Compute the gradients of q, k and v from that of the output, recomputing the scores."""
        # Where no graph of the gradients is made, what refuses to differentiate them only takes time.
        return (_gradients_once if torch.is_grad_enabled() else _gradients)(ctx, do)


def _gradients(ctx: Any, do: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
    if ctx.problem is None:
        return (*_backward_operator(*ctx.saved_tensors, do, ctx.is_causal), None)
    return (*_backward(ctx.problem, *ctx.saved_tensors, do), None)


_gradients_once = once_differentiable(_gradients)


def planned_by(choices: Choices) -> type[FlashAttentionTriton]:
    """Return the function with its plans made by other choices than those in use; it is not for torch.compile."""
    forward_planner = partial(forward_plan, choices=choices)
    backward_planner = partial(backward_plan, choices=choices)

    class Planned(FlashAttentionTriton):
        @staticmethod
        def forward(ctx: FunctionCtx, q: Tensor, k: Tensor, v: Tensor, is_causal: bool = False) -> Tensor:
            ctx.problem = problem = problem_of(q, k, v, is_causal)
            o, lse = _forward(problem, q, k, v, forward_planner)
            ctx.save_for_backward(q, k, v, o, lse)
            return o

        @staticmethod
        @once_differentiable
        def backward(ctx: Any, do: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
            return (*_backward(ctx.problem, *ctx.saved_tensors, do, backward_planner), None)

    return Planned


def _forward(
    problem: Problem, q: Tensor, k: Tensor, v: Tensor, planner: Callable[..., ForwardPlan] = forward_plan
) -> tuple[Tensor, Tensor]:
    if problem.gpu is not None and problem.gpu != current_device_index():
        with torch.cuda.device_of(q):  # on which a new plan loads its kernels
            return _forward(problem, q, k, v, planner)
    plan = planner(problem)
    if problem.copies:
        q, k, v = ready(problem.copies, q, k, v)
    o, lse = torch.empty_like(plan.like_o), torch.empty_like(plan.like_lse)
    if plan.combine is None:
        plan.attend(q, k, v, o, lse)
    else:
        chunk_o, chunk_lse = map(torch.empty_like, plan.like_parts)
        plan.attend(q, k, v, chunk_o, chunk_lse)
        plan.combine(chunk_o, chunk_lse, o, lse)
    return o, lse


def _backward(
    problem: Problem,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    do: Tensor,
    planner: Callable[..., BackwardPlan | ShortBackwardPlan] = backward_plan,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the gradients on the device that is now current, which autograd makes that of the forward pass."""
    layouts = q.stride(), k.stride(), v.stride(), do.stride()
    addresses = q.data_ptr() | k.data_ptr() | v.data_ptr() | do.data_ptr() | o.data_ptr() | lse.data_ptr()
    if addresses % ALIGNMENT_BYTES or not (o.is_contiguous() and lse.is_contiguous()):
        layouts = layouts_of(q, k, v, do)
        o, lse = dense(o, lse)  # what keeps tensors for autograd may have laid out these too
    if torch.are_deterministic_algorithms_enabled():
        plan = planner(problem, *layouts, repeatable=True)
    else:
        plan = planner(problem, *layouts)
    if plan.copies:
        q, k, v, do = ready(plan.copies, q, k, v, do)
    if isinstance(plan, ShortBackwardPlan):
        dq, dk, dv = torch.empty_like(plan.like_q), torch.empty_like(plan.like_k), torch.empty_like(plan.like_k)
        plan.gradients(q, k, v, do, o, lse, dq, dk, dv)
        return dq, dk, dv
    delta, lse_log2 = torch.empty((2, *plan.delta_shape), dtype=torch.float32, device=q.device).unbind()
    dq = torch.empty_like(q, memory_format=torch.contiguous_format)
    dq_sum = None
    if plan.query is None:
        dq_sum = dq if dq.dtype == torch.float32 else torch.empty(q.shape, dtype=torch.float32, device=q.device)
    plan.delta(o, do, lse, delta, lse_log2, dq_sum)
    dk, dv = torch.empty((2, *k.shape), dtype=k.dtype, device=k.device)
    _compute(plan.key_value, (q, k, v, do, lse_log2, delta, dq_sum), dk, dv)
    if plan.query is None:
        plan.scaled(dq_sum, dq)
    else:
        _compute(plan.query, (q, k, v, do, lse_log2, delta), dq)
    return dq, dk, dv


def _compute(launch: ChunkedLaunch, inputs: tuple[Tensor | None, ...], *gradients: Tensor) -> None:
    """Fill gradients of one shape, that lie side by side, at once or by way of the chunks that are summed to them."""
    if launch.add_up is None:
        launch.compute(*inputs, *gradients)
        return
    shape = (len(gradients), launch.chunks, *gradients[0].shape)
    parts = torch.empty(shape, dtype=torch.float32, device=gradients[0].device)
    launch.compute(*inputs, *parts)
    launch.add_up(parts, gradients[0])


@torch.library.custom_op("llm_systems_pipeline::flash_attention_forward", mutates_args=())
def _forward_operator(q: Tensor, k: Tensor, v: Tensor, is_causal: bool) -> tuple[Tensor, Tensor]:
    return _forward(problem_of(q, k, v, is_causal), q, k, v)


@_forward_operator.register_fake
def _(q: Tensor, _k: Tensor, _v: Tensor, _is_causal: bool) -> tuple[Tensor, Tensor]:
    return q.new_empty(q.shape), q.new_empty(q.shape[:-1], dtype=torch.float32)


@torch.library.custom_op("llm_systems_pipeline::flash_attention_backward", mutates_args=())
def _backward_operator(
    q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, do: Tensor, is_causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    with torch.cuda.device_of(q):
        dq, dk, dv = _backward(problem_of(q, k, v, is_causal), q, k, v, o, lse, do)
    # Results of an operator must not share memory, and those of a long sequence are two halves of one tensor.
    return dq, dk, dv.clone() if dv.storage_offset() else dv


@_backward_operator.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, _o: Tensor, _lse: Tensor, _do: Tensor, _is_causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)
