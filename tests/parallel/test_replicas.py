import pytest
import torch
from torch import nn

from pipeline.parallel import NaiveDDP
from pipeline.parallel.replicas import broadcast_from_rank_0

MISMATCHES = {
    "count": lambda rank: nn.Sequential(*(nn.Linear(3, 3) for _ in range(1 + rank))),
    "shape": lambda rank: nn.Linear(3, 3 + rank // 2),
    "dtype": lambda rank: nn.Linear(3, 3, dtype=[torch.float32, torch.float64][rank // 2]),
    "frozen": lambda rank: nn.Linear(3, 3).requires_grad_(rank < 2),
    "lazy": lambda rank: nn.Linear(3, 3) if rank < 2 else nn.LazyLinear(3),
    "buffers": lambda rank: nn.BatchNorm1d(3, track_running_stats=rank < 2),
}


def mismatched(context):
    messages = []
    for make in MISMATCHES.values():
        with pytest.raises(ValueError, match=r"differ between ranks|rank 2 raised ValueError") as caught:
            NaiveDDP(make(context.rank))
        messages.append(str(caught.value))
    return messages


def test_a_mismatch_of_the_modules_is_an_error_on_every_rank(on_ranks):
    first, *others = on_ranks(mismatched, 3, timeout_s=15)
    assert all(messages == first for messages in others)
    assert "rank 0 has 2, rank 1 has 4" in first[0]
    assert "torch.float32, shape (3, 3)" in first[1]
    assert "shape (4, 3)" in first[1]
    assert "rank 2 has" in first[1]
    assert "rank 2 raised ValueError: weight is not initialised" in first[list(MISMATCHES).index("lazy")]


DTYPES = (torch.bool, torch.uint8, torch.int16, torch.int64, torch.bfloat16, torch.float64, torch.complex64)


def assert_overwritten_by_rank_0(context):
    def build(fill):
        flat = [torch.full((2, 3), fill).to(dtype) for dtype in DTYPES]
        return [
            *flat,
            torch.full((2, 3), fill).t(),
            torch.tensor(fill),
            torch.empty(0),
            torch.full((4, 4), fill)[:, ::2],
            torch.full((3, 2), fill)[:1, 0],
            torch.full((2, 3, 1, 1), fill).to(memory_format=torch.channels_last),
        ]

    tensors = build(fill=1.0 - context.rank)
    broadcast_from_rank_0(tensors)
    torch.testing.assert_close(tensors, build(fill=1.0))


def test_tensors_of_every_dtype_and_layout_are_overwritten_in_place(on_ranks):
    on_ranks(assert_overwritten_by_rank_0, 2)
