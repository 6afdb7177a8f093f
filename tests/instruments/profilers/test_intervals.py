from types import SimpleNamespace

import pandas as pd
import pytest
from torch.autograd import DeviceType

from pipeline.instruments.profilers.intervals import overlap_us, span_us, union_us, work_of

START_NS = 1_800_000_000_000_000_000  # since 1970: more than a float holds exactly


def intervals(*rows):
    return pd.DataFrame(rows, columns=["start_us", "duration_us"])


def test_a_union_counts_overlaps_once_and_an_overlap_is_what_both_tables_share():
    assert union_us(intervals((0, 10), (5, 10), (6, 2), (0, 10), (20, 5))) == 20
    assert span_us(intervals((5, 10), (0, 3))) == 15
    compute, communication = intervals((0, 10), (20, 10)), intervals((5, 10), (8, 20))
    assert overlap_us(compute, communication) == 5 + 8
    assert union_us(intervals()) == span_us(intervals()) == overlap_us(compute, intervals()) == 0


def event(name, late_ns=0, duration_ns=9000, device_type=DeviceType.CUDA, is_user_annotation=False):
    values = {"name": name, "start_ns": START_NS + late_ns, "duration_ns": duration_ns, "device_type": device_type}
    values["is_user_annotation"] = is_user_annotation
    return SimpleNamespace(**{key: lambda value=value: value for key, value in values.items()})


EVENTS = [
    event("Optimizer.step#AdamW.step", is_user_annotation=True),
    event("cudaLaunchKernel", device_type=DeviceType.CPU),
    event("gloo:all_reduce", device_type=DeviceType.CPU, is_user_annotation=True),
    event("gemm", late_ns=1001, duration_ns=1003),
    event("gemm", duration_ns=500),
]


@pytest.mark.parametrize(
    ("on_gpu", "found"),
    [
        (True, [("gemm", 1.001, 1.003), ("gemm", 0.0, 0.5)]),
        (False, [("cudaLaunchKernel", 0.0, 9.0), ("gloo:all_reduce", 0.0, 9.0)]),
    ],
)
def test_work_is_what_ran_on_the_device_without_named_ranges_on_a_gpu(on_gpu, found):
    work = work_of(EVENTS, on_gpu)
    assert list(work.itertuples(index=False, name=None)) == found
