import pytest
import torch

from pipeline.stages.allreduce.payload import Payload, WrongSum

CPU = torch.device("cpu")


def payloads(world_size):
    return [Payload(rank, world_size, 400, 4000, CPU) for rank in range(world_size)]


def test_ranks_have_different_numbers_repeated_over_the_size():
    parts = [payload.fill(4000) for payload in payloads(3)]
    assert all(torch.equal(part[:100], part[900:]) and part.std() > 10 for part in parts)
    assert not torch.equal(parts[0], parts[1])


@pytest.mark.parametrize("order", [range(8), range(7, -1, -1)])
def test_the_sum_is_exact_in_any_order(order):
    by_rank = payloads(8)
    total = torch.zeros(1000)
    for rank in order:
        total += by_rank[rank].fill(4000)
    for payload in by_rank:
        payload.check(total, "the sum")


def test_one_wrong_number_is_found():
    by_rank = payloads(2)
    total = by_rank[0].fill(4000) + by_rank[1].fill(4000)
    total[777] += 1
    with pytest.raises(WrongSum, match="the sum: 1 of 1000 sums are wrong"):
        by_rank[0].check(total, "the sum")


def test_a_fill_undoes_what_a_sum_left():
    payload = payloads(2)[0]
    before = payload.fill(400).clone()
    payload.fill(400).mul_(2)
    assert torch.equal(payload.fill(400), before)


@pytest.mark.parametrize(("count", "expected"), [(3, 3), (10, 10), (11, 10)])
def test_parts_are_side_by_side_and_no_more_than_the_buffer_has(count, expected):
    payload = payloads(2)[0]
    parts = payload.parts(400, count)
    assert [part.storage_offset() for part in parts] == [100 * number for number in range(expected)]
    assert all(torch.equal(part, payload.fill(400)) for part in parts)
