import torch

from pipeline.parallel.replicas import broadcast_from_rank_0

from ..ranks import on_ranks

DTYPES = (torch.bool, torch.uint8, torch.int16, torch.int64, torch.bfloat16, torch.float64, torch.complex64)


def every_kind(fill):
    return [
        *(torch.full((2, 3), fill).to(dtype) for dtype in DTYPES),
        torch.full((2, 3), fill).t(),
        torch.tensor(fill),
        torch.empty(0),
        torch.full((4, 4), fill)[:, ::2],
        torch.full((3, 2), fill)[:1, 0],
        torch.full((2, 3, 1, 1), fill).to(memory_format=torch.channels_last),
    ]


@on_ranks(2)
def test_tensors_of_every_dtype_and_layout_are_overwritten_in_place(context):
    tensors = every_kind(1.0 - context.rank)
    broadcast_from_rank_0(tensors)
    torch.testing.assert_close(tensors, every_kind(1.0))
