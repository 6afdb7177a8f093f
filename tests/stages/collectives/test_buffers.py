import pytest
import torch

from pipeline.stages.collectives.buffers import EXACT, Buffers, Numbers, needed_bytes
from pipeline.stages.collectives.cell import COLLECTIVES, IN_PLACE, Cell
from pipeline.stages.collectives.declared import SUM

CPU = torch.device("cpu")
SIZE = 4 * 12 * 1000
each_collective = pytest.mark.parametrize("collective", COLLECTIVES)


def buffers(collective="all_reduce", ranks=3, dtype="fp32", size=SIZE):
    cell = Cell("gloo", ranks, 1, collective, dtype)
    return [Buffers(cell, rank, size, CPU) for rank in range(ranks)]


def run(collective, ranks, dtype="fp32"):
    """Run a collective by hand on the numbers of all ranks; return each rank's buffers and result."""
    every = buffers(collective, ranks, dtype)
    sources = [each.parts(SIZE, 1)[0][0].clone() for each in every]
    total = torch.stack(sources).sum(0)
    shares = [source.chunk(ranks) for source in sources]
    results = {
        "all_reduce": lambda rank: total,
        "all_gather": lambda rank: torch.cat(sources),
        "reduce_scatter": lambda rank: total.chunk(ranks)[rank],
        "all_to_all": lambda rank: torch.cat([share[rank] for share in shares]),
        "broadcast": lambda rank: sources[0],
        "send_recv": lambda rank: sources[(rank - 1) % ranks],
    }[collective]
    return [(each, results(rank).clone()) for rank, each in enumerate(every)]


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@each_collective
def test_correct_results_pass_and_wrong_numbers_shares_or_ranks_are_found(collective, dtype):
    found = run(collective, 3, dtype)
    if collective in ("reduce_scatter", "send_recv"):  # what another rank should have
        assert found[0][0].wrong(found[1][1], SIZE) > 0
    for own, result in found:
        assert own.wrong(result, SIZE) == 0
        if collective in ("all_gather", "all_to_all"):
            assert own.wrong(torch.cat(result.chunk(3)[::-1]), SIZE) > len(result) / 2
        result[len(result) // 2] += 1
        assert own.wrong(result, SIZE) == 1


@pytest.mark.parametrize("collective", sorted(set(COLLECTIVES) - set(IN_PLACE)))
def test_a_target_that_was_not_written_is_wrong_everywhere(collective):
    for own in buffers(collective):
        own.parts(SIZE, 1)
        [(_, target)] = own.parts(SIZE, 1)
        assert own.wrong(target, SIZE) == len(target)


@pytest.mark.parametrize("ranks", [2, 8, 100])
def test_bf16_holds_the_sums_exactly_in_any_order(ranks):
    numbers, total = Numbers(ranks, torch.bfloat16, CPU), torch.zeros(1000, dtype=torch.float64)
    for rank in range(ranks):
        numbers.write(own := torch.empty(1000, dtype=torch.bfloat16), rank)
        total += own
    assert total.max() <= EXACT
    assert numbers.wrong(total.to(torch.bfloat16), SUM, 0) == 0
    assert total.unique().numel() > 10


@pytest.mark.parametrize(("count", "expected"), [(3, 3), (10, 10), (11, 10)])
@each_collective
def test_parts_are_adjacent_fit_the_buffers_and_are_refilled(collective, count, expected):
    own = buffers(collective, ranks=2, size=4000)[0]
    nbytes = {each.data_ptr(): each.nbytes for each in (own._source, own._target)}
    assert needed_bytes(own._cell, 4000) == sum(nbytes.values())
    before = own.parts(400, 1)[0][0].clone()
    own.parts(400, 1)[0][0].mul_(2)  # as a sum in place would
    parts = own.parts(400, count)
    shape = own.shape(400)
    places = [(source.storage_offset(), target.storage_offset()) for source, target in parts]
    assert places == [(shape.source * place, shape.target * place) for place in range(expected)]
    assert all(torch.equal(source, before) for source, _ in parts)
    assert (parts[0][0].data_ptr() == parts[0][1].data_ptr()) == (collective in IN_PLACE)


def test_buffer_sizes_are_rounded_up_to_whole_numbers_per_share():
    assert Cell("nccl", 8, 1, "all_gather").buffer_bytes(100) == 128
    assert Cell("nccl", 8, 1, "all_to_all", "bf16").buffer_bytes(100) == 112
    assert Cell("nccl", 8).buffer_bytes(100) == 100
