import pytest
import torch
from torch.nn import Parameter

from pipeline.parallel.reductions import BYTES_PER_MB, in_buckets, one_for_each_dtype


def parameters(*numels, dtype=torch.float32):
    return [Parameter(torch.zeros(numel, dtype=dtype)) for numel in numels]


def sizes(reductions):
    return [[parameter.numel() for parameter in reduction.parameters] for reduction in reductions]


def mb(numel):
    return 4 * numel / BYTES_PER_MB


@pytest.mark.parametrize(
    ("numels", "most", "buckets"),
    [
        ((3, 4, 5, 1, 2), 8, [[3, 4], [5, 1, 2]]),  # in the order given
        ((1, 9, 2, 2), 4, [[1], [9], [2, 2]]),  # one that is larger has a bucket of its own
    ],
)
def test_buckets_fill_in_the_order_given_up_to_their_size(numels, most, buckets):
    assert sizes(in_buckets(parameters(*numels), mb(most))) == buckets


def test_a_bucket_holds_one_dtype_and_comes_when_it_is_full():
    full, half = parameters(2, 2, 2), parameters(4, 4, 4, dtype=torch.bfloat16)
    mixed = [parameter for pair in zip(full, half, strict=True) for parameter in pair]
    held = [reduction.parameters for reduction in in_buckets(mixed, mb(4))]
    assert [[parameter.dtype for parameter in each] for each in held] == [
        [torch.float32] * 2,
        [torch.bfloat16] * 2,
        [torch.float32],
        [torch.bfloat16],
    ]
    assert {id(parameter) for each in held for parameter in each} == {id(parameter) for parameter in mixed}


@pytest.mark.parametrize("numel", [1, 1000])
def test_a_flat_buffer_holds_all_of_a_dtype(numel):
    given = [*parameters(numel, 2), *parameters(3, dtype=torch.bfloat16), *parameters(4)]
    assert sizes(one_for_each_dtype(given)) == [[numel, 2, 4], [3]]
