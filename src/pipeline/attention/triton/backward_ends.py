"""Prepare what begins and ends a backward pass: δ before it, dq from its sums after it, and memory for both."""

import math
from dataclasses import dataclass, field

import torch
import triton
from torch import Tensor

from pipeline.attention.inputs import Traits
from pipeline.attention.triton.direct_launch import ELEMENTWISE, Launch, heads, like, prepare_launch, strides
from pipeline.attention.triton.kernels.delta import QUERIES_PER_PROGRAM, ROW_ALIGNMENT, delta_kernel
from pipeline.attention.triton.kernels.scaled import (
    COLUMNS_UNPACKED,
    ELEMENTS_SCALED,
    ROWS_UNPACKED,
    scaled_kernel,
    unpacked_kernel,
)
from pipeline.attention.triton.problem import Problem

ALIGNED_NUMBERS = 32  # 128 bytes, more than any copy needs


@dataclass(frozen=True)
class WorkingMemory:
    """Memory that a backward pass needs only while it runs, in one allocation: on small inputs, host time counts.

    sizes: how many fp32 numbers δ takes, the log-sum-exp as the kernels read it, and dq's sums, each rounded up to
    ALIGNED_NUMBERS. There are no sums if dq has its own kernel or is summed in place. like: template to allocate from.
    """

    sizes: tuple[int, ...]
    like: Tensor = field(compare=False)


def padded_numbers(q: Traits) -> int:
    """Count the numbers of δ or of the log-sum-exp in fp32, with each head's row padded for alignment."""
    return math.prod(q.shape[:-2]) * triton.cdiv(q.shape[-2], ROW_ALIGNMENT.value) * ROW_ALIGNMENT.value


def working_memory_of(q: Traits, numbers: int, dq_sum: int = 0) -> WorkingMemory:
    """Return the working memory; numbers: fp32 numbers of δ and of the log-sum-exp; dq_sum: of dq's sums."""
    sizes = tuple(triton.cdiv(size, ALIGNED_NUMBERS) * ALIGNED_NUMBERS for size in (numbers, numbers, dq_sum) if size)
    return WorkingMemory(sizes, like((sum(sizes),), torch.float32, q.device))


def delta_launch(problem: Problem, do: Traits, dq_rows: int, dq_width: int, numbers_in_parts: bool = False) -> Launch:
    """Prepare the kernel of δ, the log-sum-exp and, if dq_width is not 0, zeros to add dq to; see `delta_kernel`."""
    q, number = problem.q, torch.bfloat16 if numbers_in_parts else torch.float32
    return prepare_launch(
        delta_kernel,
        math.prod(q.shape[:-2]) * triton.cdiv(dq_rows, QUERIES_PER_PROGRAM.value),
        [q.dtype, q.dtype, torch.float32, number, number, torch.float32 if dq_width else None],
        [*strides(do), heads(q), q.shape[-2], dq_rows, problem.scale],
        {
            "HEAD_DIM": q.shape[-1],
            "DQ_WIDTH": dq_width,
            "IN_PARTS": numbers_in_parts,
        },
        ELEMENTWISE,
    )


def unpacked_launch(q: Traits, rows: int, width: int, scale: float) -> Launch:
    """Prepare the kernel that makes dq from `rows` × `width` sums in the order that threads hold them."""
    return prepare_launch(
        unpacked_kernel,
        math.prod(q.shape[:-2]) * (rows // ROWS_UNPACKED.value) * triton.cdiv(q.shape[-1], COLUMNS_UNPACKED.value),
        [torch.float32, q.dtype],
        [q.shape[-2], rows, scale],
        {"HEAD_DIM": q.shape[-1], "DQ_WIDTH": width},
        ELEMENTWISE,
    )


def scaled_launch(q: Traits, scale: float) -> Launch:
    """Prepare the kernel that makes dq from sums in dq's own order."""
    elements = math.prod(q.shape)
    return prepare_launch(
        scaled_kernel,
        triton.cdiv(elements, ELEMENTS_SCALED.value),
        [torch.float32, q.dtype],
        [elements, scale],
        {},
        ELEMENTWISE,
    )
