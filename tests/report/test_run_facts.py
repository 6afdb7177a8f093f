import pandas as pd
import pytest

from pipeline.report.run_facts import first_page
from pipeline.report.table_rows import read_rows

from .cell_lines import line


def test_every_status_is_counted_by_stage():
    cells = pd.DataFrame([line(), line(status="oom"), line(stage="flash"), line(stage="flash")])
    assert first_page(cells)["counts"] == [
        {"stage": "timing", "ok": 1, "unstable": 0, "skipped": 0, "oom": 1, "wrong": 0, "failed": 0},
        {"stage": "flash", "ok": 2, "unstable": 0, "skipped": 0, "oom": 0, "wrong": 0, "failed": 0},
    ]


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ([{"gpu_memory_bytes": 150_754_820_096, "memory_bytes": 540_908_769_280}], "151 GB (140 GiB) of GPU memory"),
        ([{"gpu_memory_bytes": None, "memory_bytes": 25_276_502_016}], "25.3 GB (23.5 GiB) of memory"),
        ([{"memory_bytes": 25_276_502_016}, {"memory_bytes": 25_276_501_900}], "25.3 GB (23.5 GiB) of memory"),
        (
            [{"gpu_memory_bytes": 8e10}, {"gpu_memory_bytes": 4e10}],
            "40.0 GB (37.3 GiB) or 80.0 GB (74.5 GiB) of GPU memory",
        ),
        ([{}], ""),
    ],
)
def test_the_first_line_says_how_much_memory_a_gpu_has_or_else_the_host(told, words):
    assert first_page(pd.DataFrame([line(**each) for each in told]))["memory"] == words


def test_hosts_are_counted_and_those_of_one_model_told_once_with_their_cores():
    cpus = ["Xeon, 64 cores", "Xeon, 16 cores", "EPYC, 2 cores", "Xeon, 16 cores", None]
    told = first_page(pd.DataFrame([line(cpu=cpu) for cpu in cpus]))["hosts"]
    assert told == "hosts of 3 kinds: EPYC with 2 cores / Xeon with 16 and 64 cores"
    assert first_page(pd.DataFrame([line(), line()]))["hosts"] == "host: Xeon with 64 cores"


def test_gpus_are_counted_by_stage_where_cells_of_one_ran_on_several():
    def gpus_of(*taken):
        stages = {"timing": taken[:2], "ddp": taken[2:]}
        cells = [line(stage=stage, gpus=gpus) for stage, each in stages.items() for gpus in each]
        return first_page(pd.DataFrame(cells))["gpus"]

    assert gpus_of("GPU-a", "GPU-b", "GPU-a GPU-b", None) == {"timing": 2, "ddp": 2}
    assert gpus_of("GPU-a", "GPU-a", "GPU-a GPU-b", "GPU-b GPU-c") == {"timing": 1, "ddp": 3}
    assert gpus_of("GPU-a", "GPU-a", "GPU-a GPU-b", "GPU-a GPU-b") == gpus_of(None, None, None) == {}


def test_the_time_is_shared_out_between_start_set_up_and_measuring():
    page = first_page(pd.DataFrame([line(), line()]))
    assert page["total_s"] == 20
    assert page["measuring"] == 0.6


def test_the_page_says_when_the_first_cell_began_and_the_last_one_ended():
    late = line(started_at="2026-01-01T11:00:00Z", measuring_s=119.0)  # after a second to set up
    page = first_page(pd.DataFrame([late, line()]))
    assert (page["first_start"], page["last_end"]) == ("2026-01-01 10:00 UTC", "2026-01-01 11:02 UTC")


@pytest.mark.parametrize(
    ("starts", "wall_s"),
    [(["10:00:00", "10:00:05"], 15), (["10:00:05", "10:00:00", "11:00:00"], 25), (["10:00:00", "10:00:00"], 10)],
)
def test_wall_time_leaves_pauses_out_and_counts_cells_side_by_side_once(starts, wall_s):
    cells = pd.DataFrame([line(started_at=f"2026-01-01T{start}Z") for start in starts])
    assert first_page(cells)["wall_s"] == wall_s


def test_a_short_cell_inside_a_long_one_ends_no_time():
    times = {"10:00:00": 20.0, "10:00:02": 1.0, "10:00:15": 6.0}
    cells = [line(started_at=f"2026-01-01T{start}Z", measuring_s=seconds) for start, seconds in times.items()]
    assert first_page(pd.DataFrame(cells))["wall_s"] == 25


def test_cells_of_several_commits_name_them_all():
    cells = pd.DataFrame([line(commit="bbb"), line(commit="aaa"), line(commit="bbb")])
    assert first_page(cells)["commits"] == ["aaa", "bbb"]


def test_what_pytorch_says_of_memory_that_ran_out_is_cut_short(tmp_path):
    said = "CUDA out of memory. Tried to allocate 2.00 MiB. If reserved but unallocated memory is large try setting it."
    pd.DataFrame([line(), line(status="oom", reason=said)]).to_csv(tmp_path / "cells.csv", index=False)
    (cell,) = first_page(read_rows(tmp_path / "cells.csv"))["outcomes"]
    assert cell["reason"] == "CUDA out of memory"
