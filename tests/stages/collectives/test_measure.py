import time
from contextlib import contextmanager
from dataclasses import asdict, replace
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from pipeline.cells.scheduler import SlurmJob
from pipeline.errors import Skipped, UserError
from pipeline.formulas.collectives import nccl_tests_bus_factor
from pipeline.instruments.sampling.stopwatch import Stopwatch
from pipeline.registry import stages
from pipeline.stages.collectives import measure, ranks
from pipeline.stages.collectives.cell import COLLECTIVES, Cell, Settings

from ...ranks import on_ranks
from ...records import derived, rows_read

SETTINGS = Settings(min_bytes=4000, max_bytes=400_000, budget_s=0, samples=10, warmup_calls=1, unstable_rel_error=1e9)
BRIEF = replace(SETTINGS, samples=2, max_samples=2)


@pytest.fixture(scope="module")
def gloo():
    return rows_read(measure.measure, Cell("gloo", 2), SETTINGS)


def merged(reports, cell, settings=None):
    return derived(cell, settings or Settings(), measure.merged(reports, cell))


def rows_of_ranks(context, cell, settings=BRIEF):
    """Measure on this rank; return the merged rows of all ranks."""
    reports = [None] * context.world_size
    dist.all_gather_object(reports, ranks.measure_rank(context, cell, settings))
    return merged(reports, cell, SETTINGS)


def kinds(rows):
    return {(row["timing"], row["impl"], row.get("placement")) for row in rows}


class NcclOverGloo:
    """A stand-in for NCCL's communicator on CPU tensors; lists the offsets of source and target in their buffers."""

    def __init__(self):
        self.places = []

    def all_reduce(self, source, target, _stream):
        self.places.append((source.storage_offset(), target.storage_offset()))
        total = source.clone()
        dist.all_reduce(total)
        target.copy_(total)

    def close(self):
        pass


@contextmanager
def called_directly(context):
    """Let an NCCL rank run on the CPU inside this context; yield its context, communicator and monkeypatch."""
    communicator = NcclOverGloo()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranks.nccl, "loaded_library", lambda: None)
        patch.setattr(ranks, "_communicator", lambda _context, _library: (communicator, 7.0))
        patch.setattr(torch.cuda, "current_stream", lambda _device: SimpleNamespace(cuda_stream=0))
        yield replace(context, backend="nccl"), communicator, patch


def report(*samples_ms, slowdowns=(), no_direct_nccl=None):
    named = {"timing": "burst", "impl": "torch", "placement": "in_place", "clock": "host"}
    row = named | {"size_bytes": 10**6, "calls": 1, "samples_ms": list(samples_ms)}
    return ranks.RankReport([row], {}, {10**6: list(slowdowns)}, no_direct_nccl)


def test_every_size_is_timed_in_bursts_and_singly_after_set_up_and_first_call(gloo):
    first, repeated = gloo[:2], gloo[2:]
    assert [row["timing"] for row in first] == ["set_up", "first_call"]
    assert all(row["n"] == 1 and row["median_ms"] > 0 for row in first)
    timed = [(row["timing"], row["size_bytes"]) for row in repeated]
    assert timed == [(timing, size) for size in (4000, 100_000, 400_000) for timing in ("burst", "single")]
    assert {tuple(key.values()) for key in Cell("gloo", 2).row_keys()} <= kinds(gloo)
    for row in repeated:
        assert (row["n"], row["status"]) == (10, "ok")
        assert row["algbw_gb_per_s"] == pytest.approx(row["size_bytes"] / row["median_ms"] / 1e6)
        assert row["busbw_gb_per_s"] == row["algbw_gb_per_s"]  # two ranks send each byte once
        if row["timing"] == "burst":  # how many parts of the buffers its calls went through
            assert row["parts"] == min(row["calls"] + 1, 400_000 // row["size_bytes"])


def test_the_ranks_time_counts_as_measuring(monkeypatch):
    monkeypatch.setattr(measure, "run_ranks", lambda *_args, **_words: time.sleep(0.05) or [report(1.0)] * 2)
    measure.measure(Cell("gloo", 2), SETTINGS, stopwatch := Stopwatch())
    assert stopwatch.seconds()["measuring"] >= 0.05


@on_ranks(3)
@pytest.mark.parametrize(("collective", "dtype"), [*zip(COLLECTIVES, ["bf16", "fp32"] * 3, strict=True)])
def test_every_collective_is_right_on_gloo_and_timed_at_every_size(context, collective, dtype):
    cell = Cell("gloo", 3, 1, collective, dtype)
    rows = rows_of_ranks(context, cell, replace(SETTINGS, min_bytes=8, max_bytes=1000, samples=2))
    timed = [row for row in rows if row["timing"] in ("burst", "single")]
    assert [row["size_bytes"] for row in timed if row["timing"] == "burst"] == [8, 100, 1000]
    assert {(row["status"], row["placement"]) for row in timed} == {("ok", cell.placement)}
    for row in timed:
        assert row["busbw_gb_per_s"] == pytest.approx(row["algbw_gb_per_s"] * nccl_tests_bus_factor(collective, 3))


@on_ranks(2)
def test_a_wrong_result_names_its_rank_and_has_no_times_unlike_other_sizes(context):
    def wrong(source, _target, rank, _ranks):
        dist.broadcast(source, src=0)
        if len(source) > 1000:
            source[3] += rank

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(ranks.COLLECTIVES, "broadcast", replace(ranks.COLLECTIVES["broadcast"], call=wrong))
        rows = rows_of_ranks(context, Cell("gloo", 2, 1, "broadcast"))
    wrong = [row for row in rows if row["status"] == "wrong"]
    expected = [(timing, size) for size in (100_000, 400_000) for timing in ("burst", "single")]
    assert [(row["timing"], row["size_bytes"]) for row in wrong] == expected
    assert {row["reason"] for row in wrong} == {"wrong numbers: 1 on rank 1"}
    assert all(("samples_ms" in row) != (row in wrong) for row in rows)


@on_ranks(2)
def test_direct_nccl_calls_cycle_through_the_buffers_in_and_out_of_place(context):
    settings, cell, bursts = replace(BRIEF, max_bytes=40_000, budget_s=60, burst_calls=11), Cell("nccl", 2), []
    time_burst_ms = ranks.time_burst_ms

    def noting(*args):
        communicator.places.clear()
        time_ms = time_burst_ms(*args)
        bursts.append(list(communicator.places))
        return time_ms

    with called_directly(context) as (nccl_context, communicator, patch):
        patch.setattr(ranks, "time_burst_ms", noting)
        rows = rows_of_ranks(nccl_context, cell, settings)
    through = [(1000 * (number % 10),) * 2 for number in range(12)]
    # the largest size has only one part
    assert [places for places in bursts if places] == [through] * 4 + [[(0, 0)] * 12] * 4
    assert {tuple(key.values()) for key in cell.row_keys()} <= kinds(rows)
    assert [row["median_ms"] for row in rows if row["timing"] == "set_up" and row["impl"] == "nccl"] == [7.0]
    assert len([row for row in rows if row["impl"] == "nccl" and row["timing"] == "burst"]) == 2 * 2


def test_a_size_that_does_not_fit_on_every_gpu_is_out_of_memory(monkeypatch):
    monkeypatch.setattr(ranks.torch.cuda, "mem_get_info", lambda _device: (10**6, 10**6))
    monkeypatch.setattr(ranks, "_most", lambda value, _device: value)
    cell = Cell("nccl", 2, 1, "all_gather")
    fitting, rows = ranks._fitting(SimpleNamespace(device=torch.device("cuda")), cell, [10**3, 6 * 10**5, 6 * 10**6])
    assert fitting == [10**3, 6 * 10**5]  # a call needs the whole buffer and half of it
    outcomes = [(row["timing"], row["status"], row["size_bytes"]) for row in rows]
    assert outcomes == [(timing, "oom", 6 * 10**6) for timing in ("burst", "single")]
    assert rows[0]["reason"] == "needs 0.0 GB a GPU, 0.0 GB are free"
    stages()["collectives"].row_types.check(asdict(cell), rows)


@pytest.mark.parametrize(
    ("settings", "backend", "sizes"),
    [
        (Settings(), "nccl", [8, *(10**power for power in range(2, 10)), 4 * 10**9]),
        (Settings(), "gloo", [8, *(10**power for power in range(2, 10))]),
        (Settings(min_bytes=10**6, max_bytes=10**6), "nccl", [10**6]),
        (Settings(factor=100, max_bytes=256_000_000), "nccl", [8, 100, 10**4, 10**6, 10**8, 256_000_000]),
    ],
)
def test_sizes_are_both_ends_and_powers_between(settings, backend, sizes):
    assert settings.sizes_bytes(backend) == sizes


def test_samples_are_the_slowest_ranks_and_missing_gpu_readings_are_ignored():
    states = [{"sm_clock_mhz": clock, "temperature_c": t} for clock, t in ((1900, 40), (1500, None), (None, 60))]
    reports = [replace(report(1.0, 4.0, 3.0), states={10**6: states}), report(2.0, 5.0, 8.0)]
    row = merged(reports, Cell("nccl", 2))[0]
    assert row["samples_ms"] == [2.0, 5.0, 8.0]
    assert row["rank_medians_ms"] == [3.0, 5.0]
    assert (row["rank_min_ms"], row["rank_mean_ms"], row["rank_max_ms"]) == (3.0, 4.0, 5.0)
    assert (row["sm_clock_mhz"], row["temperature_c"]) == (1500, 60)


def test_bus_bandwidth_uses_the_ring_factor_and_more_ranks_than_cores_are_flagged(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: {0, 1})
    row = merged([report(2.0)] * 4, Cell("nccl", 4))[0]
    assert (row["algbw_gb_per_s"], row["busbw_gb_per_s"], row["oversubscribed"]) == (0.5, 0.75, False)
    for cell, is_oversubscribed in ((Cell("gloo", 2), False), (Cell("gloo", 3), True), (Cell("gloo", 4, 2), False)):
        row = merged([report(1.0)] * cell.world_size, cell)[0]
        assert (row["cores"], row["oversubscribed"]) == (2, is_oversubscribed)


def test_throttled_or_noisy_rows_are_unstable_and_missing_direct_nccl_is_skipped():
    throttled, noisy = report(1.0, 1.0, slowdowns=["hw_slowdown"]), report(1.0, 9.0, no_direct_nccl="not loaded")
    for ranks_report, reason in ((throttled, "GPU slowed down: hw_slowdown"), (noisy, "median unknown")):
        row, *skipped = merged([ranks_report] * 2, Cell("nccl", 2))
        assert (row["status"], row["median_ms"] > 0) == ("unstable", True)
        assert row["reason"].startswith(reason)
    assert {row["status"] for row in skipped} == {"skipped"}
    assert [row["placement"] for row in skipped] == ["in_place", "out_of_place"]


def test_bad_sizes_and_nodes_are_refused_and_nccl_takes_a_gpu_per_rank_of_a_node():
    with pytest.raises(UserError, match=r"max_bytes must be at least min_bytes \(400\), got 40"):
        measure.measure(Cell("gloo", 2), Settings(min_bytes=400, max_bytes=40), Stopwatch())
    with pytest.raises(UserError, match=r"^world_size must be a multiple of nodes \(2\), got 3$"):
        Cell("gloo", 3, 2)
    assert (Cell("nccl", 6).gpus, Cell("nccl", 6, 3).gpus, Cell("gloo", 6).gpus) == (6, 2, 0)


@pytest.mark.parametrize(
    ("cell", "job", "reason"),
    [
        (Cell("gloo", 4, 2), None, "2 nodes need a job of Slurm, this is none"),
        (Cell("gloo", 4, 2), SlurmJob("7", "n1", 1), "needs 2 nodes, Slurm job 7 has 1"),
        (Cell("nccl", 4), None, "NCCL needs a GPU for each of 4 ranks, none present"),
    ],
)
def test_a_cell_is_skipped_if_nodes_or_gpus_are_missing(monkeypatch, cell, job, reason):
    monkeypatch.setattr(measure, "slurm_job", lambda: job)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(Skipped, match=f"^{reason}$"):
        measure.measure(cell, SETTINGS, Stopwatch())


@pytest.mark.gpu(count=2)
def test_nccl_is_timed_in_place_and_out_of_place_by_torch_and_directly():
    rows = rows_read(measure.measure, Cell("nccl", 2), Settings(max_bytes=10**7, budget_s=0.1))
    assert {tuple(key.values()) for key in Cell("nccl", 2).row_keys()} <= kinds(rows)
    assert all(row["status"] in ("ok", "unstable") for row in rows)


@pytest.mark.gpu(count=2)
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_every_collective_is_right_over_nccl_and_small_ones_are_captured(collective):
    cell = Cell("nccl", 2, 1, collective, "bf16")
    settings = Settings(factor=1000, max_bytes=10**7, budget_s=0.05, warmup_calls=1)
    rows = rows_read(measure.measure, cell, settings)
    assert {row["status"] for row in rows} <= {"ok", "unstable"}
    sizes = {timing: [row["size_bytes"] for row in rows if row["timing"] == timing] for timing in ("burst", "graph")}
    assert sizes == {"burst": [8, 1000, 10**6, 10**7], "graph": [8, 1000, 10**6]}
