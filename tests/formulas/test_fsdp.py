import pytest

from pipeline.formulas import fsdp_training
from pipeline.formulas.activations import Workload
from pipeline.formulas.fsdp import ALIGNMENT, FsdpPlan, flat_layout
from pipeline.formulas.sizes import SIZES


@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
@pytest.mark.parametrize("sizes", [[1], [8], [5, 100, 3], [24, 8], [7, 1000, 7]])
def test_pieces_hold_every_element_once_and_each_parameter_starts_aligned(sizes, world_size):
    layout = flat_layout(sizes, world_size)
    assert all(place % ALIGNMENT == 0 for place in (*layout.offsets, layout.piece))
    assert layout.elements == world_size * layout.piece >= sum(sizes)
    assert layout.elements - sum(sizes) < ALIGNMENT * (len(sizes) + world_size)
    for index, size in enumerate(sizes):
        spans = [layout.own(index, rank) for rank in range(world_size)]
        assert [element for begin, end in spans for element in range(begin, end)] == list(range(size))
    assert sum(layout.sizes_and_gaps()) == layout.elements
    assert layout.sizes_and_gaps()[::2] == sizes


def test_a_single_parameter_without_padding_is_sent_as_it_is():
    assert [flat_layout(sizes, 2).is_sent_as_it_is for sizes in ([32], [30], [16, 16])] == [True, False, False]


def plan_of(elements, compute_itemsize=4, replicated=0):
    return FsdpPlan(tuple(flat_layout([count], 2) for count in elements), replicated, 4, compute_itemsize)


def test_a_rank_keeps_its_shards_all_that_is_replicated_and_two_buffers_of_largest_units():
    plan = plan_of([160, 320], replicated=10)
    assert plan.persistent_bytes == plan.gradient_bytes == 4 * (240 + 10)
    assert plan.moments_bytes == 8 * (240 + 10)
    assert plan_of([160, 320, 480, 16]).gathered_bytes == 4 * (480 + 320)
    assert plan_of([160], compute_itemsize=2).gathered_bytes == 2 * 160


def test_peak_gradient_bytes_include_received_pieces_and_buffers_being_sent():
    # The first unit's gradients, the second's buffer being sent, the pieces of the second and third.
    assert plan_of([160, 160, 160]).collecting_bytes == 4 * (160 + 160 + 80 + 80)
    # A piece to convert also exists in the dtype in which it was sent.
    assert plan_of([160, 160], compute_itemsize=2).collecting_bytes == 2 * (160 + 160 + 80) + 4 * 80


def test_the_last_two_units_are_not_gathered_again():
    sent = plan_of([160, 320, 480], replicated=10).collective_bytes
    assert sent == {"allgather_base": 4 * (2 * 960 - 800), "reduce_scatter_base": 4 * 960, "allreduce": 40}


def test_communication_is_exposed_at_both_ends_of_a_step_and_if_it_outlasts_computation():
    plan = plan_of([160, 320])
    at_ends_bytes = 2 * 4 * 160 / 2  # each of two ranks sends half of the first unit, twice
    assert plan.exposed_s(4000.0, 1000.0, computation_s=10.0) == at_ends_bytes / 1000
    assert plan.exposed_s(4000.0, 1000.0, computation_s=1.0) == pytest.approx(4.0 - 1.0)


def test_the_peak_falls_towards_activations_and_buffers_with_more_ranks():
    workload = Workload(SIZES["xl"], 10_000, 2, 512)
    plans = [fsdp_training.sharded_by_block(workload.size, 10_000, ranks, 4) for ranks in (1, 2, 4, 64)]
    peaks = [fsdp_training.peak_bytes(workload, plan) for plan in plans]
    assert peaks == sorted(peaks, reverse=True)
    state_bytes = 16 * 1_998_235_200  # parameters, gradients and moments of xl in fp32
    assert peaks[-1] < state_bytes / 2 < state_bytes < peaks[0]
