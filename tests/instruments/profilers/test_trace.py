import pandas as pd
import pytest

from pipeline.instruments.profilers.trace import NOWHERE, build_trace, events_of, range_times

MAIN, AUTOGRAD = 1, 2


def trace(work, launches, ranges):
    tables = {
        "name stream start_us duration_us correlation": work,
        "correlation launch_us thread": launches,
        "name thread start_us duration_us": ranges,
    }
    return build_trace(*(pd.DataFrame(rows, columns=names.split()) for names, rows in tables.items()), "hand-made")


@pytest.fixture
def step():
    """Make a step whose kernels run after their ranges have closed, on two streams that overlap.

    host     train_step 0--------------------------------100
             forward    5----------50   backward 55----95
             attention    10----30
    stream 7                       40 gemm 60 80 add 90 100 gemm 140
    stream 9                           50  copy  70            130 nccl 160
    """
    return trace(
        [
            ("gemm forward", 7, 40.0, 20.0, 1),
            ("Memcpy DtoD", 9, 50.0, 20.0, 2),
            ("add", 7, 80.0, 10.0, 3),
            ("gemm backward", 7, 100.0, 40.0, 4),
            ("nccl", 9, 130.0, 30.0, 5),
        ],
        # The backward pass is launched from a thread without ranges.
        [(1, 12.0, MAIN), (2, 32.0, MAIN), (3, 49.0, MAIN), (4, 60.0, AUTOGRAD), (5, 94.0, AUTOGRAD)],
        [
            *(("train_step", MAIN, 0.0, 100.0), ("forward", MAIN, 5.0, 45.0)),
            *(("attention", MAIN, 10.0, 20.0), ("backward", MAIN, 55.0, 40.0)),
        ],
    )


def test_kernels_belong_to_their_launching_range_or_that_of_the_waiting_thread(step):
    # At 40 us, when the first kernel starts, the range "attention" is already closed.
    launching = ["forward/attention", "forward", "forward", "backward", "backward"]
    assert list(step.events["path"]) == [f"train_step/{path}" for path in launching]
    assert step.events["category"].tolist() == ["matmul", "copy", "other", "matmul", "communication"]


GEMM = ("gemm", 7, 50.0, 1.0, 1)


@pytest.mark.parametrize(
    ("launched", "ranges", "path"),
    [
        # Another thread's range began later.
        ((1, 30.0, AUTOGRAD), [("own", AUTOGRAD, 10.0, 30.0), ("later", MAIN, 20.0, 30.0)], "own"),
        # An inner range that seems to outlast its outer one ends with it.
        ((1, 10.001, MAIN), [("outer", MAIN, 0, 10), ("inner", MAIN, 5, 5.002), ("after", MAIN, 10, 5)], "after"),
        # It was launched outside all ranges.
        ((1, 60.0, MAIN), [("forward", MAIN, 10.0, 40.0)], ""),
        ((1, 60.0, MAIN), [], ""),
        # Its launch is not in the capture.
        ((2, 20.0, MAIN), [("forward", MAIN, 10.0, 40.0)], ""),
    ],
)
def test_a_kernel_belongs_to_the_innermost_range_of_its_launching_thread_or_to_none(launched, ranges, path):
    found = trace([GEMM], [launched], ranges)
    assert list(found.events["path"]) == [path]
    assert (found.events["range_id"][0] == NOWHERE) == (path == "")


def test_ranges_that_start_or_end_together_are_nested_by_length():
    ranges = [("inner", MAIN, 0.0, 2.0), ("outer", MAIN, 0.0, 10.0), ("next", MAIN, 2.0, 8.0)]
    nested = trace([GEMM], [(1, 0.0, MAIN)], ranges)
    assert list(nested.events["path"]) == ["outer/inner"]
    assert set(nested.ranges["path"]) == {"outer", "outer/inner", "outer/next"}


def test_a_range_includes_its_inner_ranges_in_its_sum_busy_and_span_times(step):
    assert list(events_of(step, "train_step/forward")["name"]) == ["gemm forward", "Memcpy DtoD", "add"]
    assert len(events_of(step, "train_step")) == 5
    assert events_of(step, "forward").empty
    times = range_times(step, "train_step/forward").iloc[0]
    # Busy from 40 to 70 and from 80 to 90; the two streams overlap for 10.
    assert dict(times) == {"kernel_sum_us": 50, "busy_us": 40, "span_us": 50, "range_us": 45}


def test_each_repetition_of_a_range_has_its_own_times_since_the_capture_start():
    twice = trace(
        [("gemm", 7, 1005.0, 4.0, 1), ("gemm", 7, 1025.0, 6.0, 2)],
        [(1, 1001.0, MAIN), (2, 1021.0, MAIN)],
        [("step", MAIN, start_us, 10.0) for start_us in (1000.0, 1020.0, 1040.0)],
    )
    assert list(range_times(twice, "step")["kernel_sum_us"]) == [4, 6, 0]
    assert list(events_of(twice, "step")["occurrence"]) == [0, 1]
    assert (list(twice.ranges["start_us"]), list(twice.events["start_us"])) == ([0, 20, 40], [5, 25])
