"""Lay out tensors in memory in every way that a caller's may be, surrounded by NaN."""

import itertools
import math

import torch

OFFSETS = (0, 1, 4)  # in elements: 4 are 16 bytes in fp32, which is aligned, but 8 bytes in a 16-bit dtype
GUARD = 64  # elements before and after


def _memory(shape, offset, like):
    """Return a dense tensor, `offset` elements from an aligned address, in memory full of NaN."""
    memory = torch.full((2 * GUARD + offset + math.prod(shape),), math.nan, dtype=like.dtype, device=like.device)
    return memory[GUARD + offset : -GUARD].view(shape)


def _dense(x, offset):
    return _memory(x.shape, offset, x)


def _of_a_wider_tensor(columns_more):
    return lambda x, offset: _memory((*x.shape[:-1], x.shape[-1] + columns_more), offset, x)[..., : x.shape[-1]]


def _one_of_three_heads(x, offset):
    return _memory((x.shape[0], 3, *x.shape[1:]), offset, x)[:, 1]


def _transposed(a, b):
    return lambda x, offset: _memory(x.transpose(a, b).shape, offset, x).transpose(a, b)


LAYOUTS = {
    "dense": _dense,
    "columns of a wider tensor": _of_a_wider_tensor(8),
    "columns of a tensor with odd rows": _of_a_wider_tensor(1),
    "one of three heads": _one_of_three_heads,
    "sequence before heads": _transposed(1, -2),  # dense for 3-D tensors
    "sequence before batch": _transposed(0, -2),
    "rows that are columns": _transposed(-2, -1),
}
PLACES = list(itertools.product(LAYOUTS, OFFSETS))


def laid_out(x, layout, offset=0):
    """Return a copy in this layout, `offset` elements past an aligned address, surrounded by NaN."""
    view = LAYOUTS[layout](x, offset).copy_(x)
    assert view.shape == x.shape
    return view
