import pandas as pd
import pytest

from pipeline.instruments.profilers.trace import (
    NOWHERE,
    build_trace,
    events_of,
    range_times,
)

MAIN, AUTOGRAD = 1, 2


def frame(columns, *rows):
    return pd.DataFrame(list(rows), columns=columns.split())


def ranges(*rows):
    return frame("name thread start_us duration_us", *rows)


def launches(*rows):
    return frame("correlation launch_us thread", *rows)


def work(*rows):
    return frame("name stream start_us duration_us correlation", *rows)


def trace(work, launches, ranges):
    return build_trace(work, launches, ranges, "hand-made")


@pytest.fixture
def step():
    """Make a step whose kernels run after their ranges are over, on two streams that overlap.

    host     train_step 0--------------------------------100
             forward    5----------50   backward 55----95
             attention    10----30
    stream 7                       40 gemm 60 80 add 90 100 gemm 140
    stream 9                           50  copy  70            130 nccl 160
    """
    return trace(
        work(
            ("gemm forward", 7, 40.0, 20.0, 1),
            ("Memcpy DtoD", 9, 50.0, 20.0, 2),
            ("add", 7, 80.0, 10.0, 3),
            ("gemm backward", 7, 100.0, 40.0, 4),
            ("nccl", 9, 130.0, 30.0, 5),
        ),
        # The backward pass is launched from a thread without ranges.
        launches((1, 12.0, MAIN), (2, 32.0, MAIN), (3, 49.0, MAIN), (4, 60.0, AUTOGRAD), (5, 94.0, AUTOGRAD)),
        ranges(
            ("train_step", MAIN, 0.0, 100.0),
            ("forward", MAIN, 5.0, 45.0),
            ("attention", MAIN, 10.0, 20.0),
            ("backward", MAIN, 55.0, 40.0),
        ),
    )


def test_a_kernel_belongs_to_the_range_that_launched_it_or_on_another_thread_that_waits_for_it(step):
    # At 40 us, where the first kernel starts, the range "attention" is over.
    launching = [
        "train_step/forward/attention",
        "train_step/forward",
        "train_step/forward",
        *["train_step/backward"] * 2,
    ]
    assert list(step.events["path"]) == launching
    assert step.events["category"].tolist() == ["matmul", "copy", "other", "matmul", "communication"]


def test_a_threads_own_range_comes_before_a_later_one_of_another_thread():
    own = trace(
        work(("gemm", 7, 50.0, 1.0, 1)),
        launches((1, 30.0, AUTOGRAD)),
        ranges(("own", AUTOGRAD, 10.0, 30.0), ("later", MAIN, 20.0, 30.0)),
    )
    assert list(own.events["path"]) == ["own"]


@pytest.mark.parametrize("there", [(), (("forward", MAIN, 10.0, 40.0),)])
def test_what_was_launched_outside_of_the_capture_or_of_ranges_belongs_nowhere(there):
    early, late = ("early", 7, 0.0, 1.0, -1), ("late", 7, 90.0, 1.0, 1)
    outside = trace(work(early, late), launches((1, 60.0, MAIN)), ranges(*there))
    assert list(outside.events["path"]) == ["", ""]
    assert list(outside.events["range_id"]) == [NOWHERE, NOWHERE]


def test_ranges_that_start_and_end_together_are_nested_by_length():
    nested = trace(
        work(("gemm", 7, 5.0, 1.0, 1)),
        launches((1, 0.0, MAIN)),
        ranges(("inner", MAIN, 0.0, 2.0), ("outer", MAIN, 0.0, 10.0), ("next", MAIN, 2.0, 8.0)),
    )
    assert list(nested.events["path"]) == ["outer/inner"]
    assert set(nested.ranges["path"]) == {"outer", "outer/inner", "outer/next"}


def test_an_inner_range_that_seems_to_outlast_its_outer_one_ends_with_it():
    rounded = trace(
        work(("gemm", 7, 30.0, 1.0, 1)),
        launches((1, 10.001, MAIN)),
        ranges(("outer", MAIN, 0.0, 10.0), ("inner", MAIN, 5.0, 5.002), ("after", MAIN, 10.0, 5.0)),
    )
    assert list(rounded.events["path"]) == ["after"]


def test_a_range_has_the_events_of_its_inner_ranges_too(step):
    assert list(events_of(step, "train_step/forward")["name"]) == ["gemm forward", "Memcpy DtoD", "add"]
    assert len(events_of(step, "train_step")) == 5
    assert events_of(step, "forward").empty


def test_sum_busy_time_span_and_range_differ_where_streams_overlap_and_idle(step):
    times = range_times(step, "train_step/forward").iloc[0]
    assert times["kernel_sum_us"] == 50
    assert times["busy_us"] == 40  # 40 to 70, 80 to 90: ten overlap on two streams
    assert times["span_us"] == 50
    assert times["range_us"] == 45


def test_each_repetition_of_a_range_has_its_own_times():
    twice = trace(
        work(("gemm", 7, 5.0, 4.0, 1), ("gemm", 7, 25.0, 6.0, 2)),
        launches((1, 1.0, MAIN), (2, 21.0, MAIN)),
        ranges(("step", MAIN, 0.0, 10.0), ("step", MAIN, 20.0, 10.0), ("step", MAIN, 40.0, 10.0)),
    )
    assert list(range_times(twice, "step")["kernel_sum_us"]) == [4, 6, 0]
    assert list(events_of(twice, "step")["occurrence"]) == [0, 1]


def test_times_count_from_the_start_of_the_capture(step):
    later = trace(
        work(("gemm", 7, 1040.0, 20.0, 1)), launches((1, 1012.0, MAIN)), ranges(("step", MAIN, 1000.0, 100.0))
    )
    assert (later.ranges["start_us"][0], later.events["start_us"][0]) == (0, 40)
