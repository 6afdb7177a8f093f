"""Run the plans of the Triton attention: allocate tensors and launch kernels."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.accelerator import current_device_index

from pipeline.attention.triton.backward_plan import BackwardPlan, ChunkedLaunch, ShortBackwardPlan, backward_plan
from pipeline.attention.triton.forward_plan import ForwardPlan, forward_plan
from pipeline.attention.triton.layouts import ALIGNMENT_BYTES, Layout, dense, layouts_of, ready
from pipeline.attention.triton.problem import Problem


def run_forward(
    problem: Problem, q: Tensor, k: Tensor, v: Tensor, planner: Callable[..., ForwardPlan] = forward_plan
) -> tuple[Tensor, Tensor]:
    """Compute output and log-sum-exp on the device of the inputs."""
    if problem.gpu is not None and problem.gpu != current_device_index():
        with torch.cuda.device_of(q):  # a new plan loads its kernels on the current device
            return run_forward(problem, q, k, v, planner)
    plan = planner(problem)
    if problem.copies:
        q, k, v = ready(problem.copies, q, k, v)
    o, lse = torch.empty_like(q, memory_format=torch.contiguous_format), torch.empty_like(plan.like_lse)
    if plan.in_parts:
        q, k, v = plan.in_parts(q, k, v)
    if plan.combine is None:
        plan.attend(q, k, v, o, lse)
    else:
        chunk_o, chunk_lse = map(torch.empty_like, plan.like_chunks)
        plan.attend(q, k, v, chunk_o, chunk_lse)
        plan.combine(chunk_o, chunk_lse, o, lse)
    return o, lse


def run_backward(
    problem: Problem,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    do: Tensor,
    planner: Callable[..., BackwardPlan | ShortBackwardPlan] = backward_plan,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the gradients on the current device, which autograd sets to that of the forward pass."""
    layouts: tuple[Layout, ...] = q.stride(), k.stride(), v.stride(), do.stride()
    addresses = q.data_ptr() | k.data_ptr() | v.data_ptr() | do.data_ptr() | o.data_ptr() | lse.data_ptr()
    if addresses % ALIGNMENT_BYTES or not (o.is_contiguous() and lse.is_contiguous()):
        layouts = layouts_of(q, k, v, do)
        o, lse = dense(o, lse)  # hooks on saved tensors may have changed these too
    if torch.are_deterministic_algorithms_enabled():
        plan = planner(problem, *layouts, repeatable=True)
    else:
        plan = planner(problem, *layouts)
    if plan.copies:
        q, k, v, do = ready(plan.copies, q, k, v, do)
    dq = torch.empty_like(q, memory_format=torch.contiguous_format)
    if isinstance(plan, ShortBackwardPlan):
        dk, dv = torch.empty_like(plan.like_k), torch.empty_like(plan.like_k)
        plan.gradients(q, k, v, do, o, lse, dq, dk, dv)
        return dq, dk, dv
    delta, lse_read, dq_sum = working_memory(plan, dq)
    plan.delta(o, do, lse, delta, lse_read, dq_sum)
    dk, dv = torch.empty_like(plan.like_dk_dv).unbind()
    if plan.in_parts:
        q, k, v, do = plan.in_parts(q, k, v, do)
    run_chunked(plan.key_value, (q, k, v, do, lse_read, delta, dq_sum), dk, dv)
    if plan.query is None:
        plan.scaled(dq_sum, dq)  # type: ignore[misc]  # None only where `query` is not
    else:
        run_chunked(plan.query, (q, k, v, do, lse_read, delta), dq)
    return dq, dk, dv


def working_memory(plan: BackwardPlan, dq: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return memory for δ, for the log-sum-exp as the kernels read it, and for dq's sums, None if there are none.

    It is typed fp32, also where Gluon's kernels write and read δ and the log-sum-exp as bf16 parts.
    """
    delta, lse_read, *sums = torch.empty_like(plan.memory.like).split_with_sizes(plan.memory.sizes)
    if plan.query is not None:
        return delta, lse_read, None
    return delta, lse_read, sums[0] if sums else dq


def run_chunked(launch: ChunkedLaunch, inputs: tuple[Tensor | None, ...], *gradients: Tensor) -> None:
    """Fill gradients of one shape, adjacent in memory, directly or by summing those of the chunks."""
    if launch.add_up is None:
        launch.compute(*inputs, *gradients)
        return
    shape = (len(gradients), launch.chunks, *gradients[0].shape)
    parts = torch.empty(shape, dtype=torch.float32, device=gradients[0].device)
    launch.compute(*inputs, *parts)
    launch.add_up(parts, gradients[0])
