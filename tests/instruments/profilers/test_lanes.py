import pandas as pd
import pytest
from torch.autograd import DeviceType

from pipeline.instruments.profilers.lanes import Lanes, lanes

from .test_intervals import event


def events(*intervals):
    return pd.DataFrame([(start, end - start) for start, end in intervals], columns=["start_us", "duration_us"])


def columns(computation, communication):
    return Lanes(events(*computation), events(*communication)).columns()


@pytest.mark.parametrize(
    ("computation", "communication", "computation_ms", "communication_ms", "hidden_ms", "span_ms"),
    [
        ([(0, 1000), (1500, 2000)], [(800, 1600)], 1.5, 0.8, 0.3, 2),
        # Two kernels on two streams, two transfers on two channels.
        ([(0, 600), (400, 1000)], [(500, 900), (500, 1500)], 1, 1, 0.5, 1.5),
        ([(0, 1000)], [], 1, 0, 0, 1),
    ],
)
def test_hidden_time_is_what_both_lanes_share_and_overlaps_count_once(
    computation, communication, computation_ms, communication_ms, hidden_ms, span_ms
):
    row = columns(computation, communication)
    found = [row[name] for name in ("computation_ms", "communication_ms", "hidden_ms", "span_ms")]
    assert found == pytest.approx([computation_ms, communication_ms, hidden_ms, span_ms])


def parts(*lengths_and_shares):
    """Build a lane from pieces: the number of parts and their busy share."""
    return [share for length, share in lengths_and_shares for _ in range(length)]


def test_lanes_give_the_busy_share_per_part_and_a_rank_waits_while_it_only_communicates():
    # 1000 us are 100 parts: busy with an overlap, half busy with many short events, idle, an event across an edge.
    short = [(start, start + 1) for start in range(1100, 2100, 2)]
    row = columns([(100, 1100), (200, 1000), *short, (3095, 3105)], [(4000, 4100)])
    assert row["computation_busy_pct"] == parts((100, 100), (100, 50), (99, 0), (1, 50), (1, 50), (99, 0))
    assert row["communication_busy_pct"] == parts((390, 0), (10, 100))
    assert set(columns([(0, 1000)], [])["communication_busy_pct"]) == {0}
    row = columns([(0, 1000), (3000, 4000)], [(500, 2000)])  # a part is 10 µs
    assert row["waiting_busy_pct"] == parts((100, 0), (100, 100), (200, 0))


def test_collectives_are_separated_by_name_and_exposed_while_nothing_computes():
    names = ["ncclDevKernel_AllGather_RING_LL", "ncclDevKernel_ReduceScatter_Sum_bf16"]
    communication = events((500, 1500), (1500, 2000)).assign(name=names)
    row = Lanes(events((0, 1000), (1900, 2000)), communication).columns_by_collective(
        {"gather": "all_?gather", "scatter": "reduce_?scatter"}
    )
    assert (row["span_ms"], row["computation_ms"]) == (2, 1.1)
    assert (row["gather_ms"], row["gather_exposed_ms"]) == (1, 0.5)
    assert (row["scatter_ms"], row["scatter_exposed_ms"]) == (0.5, 0.4)
    assert row["scatter_busy_pct"] == parts((300, 0), (100, 100))


def test_collectives_that_match_a_name_are_listed_in_order_of_start():
    names = ["ncclDevKernel_AllGather", "ncclDevKernel_ReduceScatter", "ncclDevKernel_AllGather"]
    communication = events((1500, 2500), (100, 200), (500, 700)).assign(name=names)
    found = Lanes(events((0, 1000), (2400, 3000)), communication).each("gather", "allgather")
    assert found == {"each_gather_ms": [0.2, 1.0], "each_gather_exposed_ms": [0.0, 0.9]}


@pytest.mark.parametrize(
    ("device_type", "names", "computation", "communication"),
    [
        # Operators compute, the backend communicates.
        ("cpu", ["aten::mm", "gloo:all_reduce", "c10d::allreduce_", "autograd::engine", "ProfilerStep#1"], [0], [1]),
        ("cuda", ["ampere_sgemm", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "Memcpy DtoD"], [0, 2], [1]),
    ],
)
def test_computation_and_communication_are_separated_by_name(device_type, names, computation, communication):
    work = lanes([event(name, device_type=getattr(DeviceType, device_type.upper())) for name in names], device_type)
    assert (list(work.computation.index), list(work.communication.index)) == (computation, communication)
