"""Tables of collectives from a cost model: latency and bandwidth of a backend, and what a single call adds."""

from dataclasses import asdict

import pytest

from pipeline.formulas.collectives import nccl_tests_bus_factor
from pipeline.stages.collectives.cell import COLLECTIVES, Cell

from ..frames import failed, frame_of, timed

SIZES_BYTES = (1_000_000, 10_000_000, 100_000_000, 1_000_000_000)
# Latency and bus bandwidth in a burst, and what a single call adds by the host clock.
COSTS = {"gloo": (300e-6, 1.2e9, 100e-6), "nccl": (15e-6, 320e9, 60e-6)}
SHARED = {"setting_warmup_calls": 5, "cores": 96, "torch": "2.11.0", "machine": "NVIDIA H200", "cuda": "13.0"}


def row(cell, timing, seconds, clock="host", size_bytes=None, impl="torch", slower=1, **columns):
    median_ms, rates = 1e3 * seconds * slower, {}
    if timing in ("burst", "single", "graph"):
        algbw = size_bytes / median_ms / 1e6
        busbw = algbw * nccl_tests_bus_factor(cell.collective, cell.world_size)
        rates = {"placement": cell.placement, "algbw_gb_per_s": algbw, "busbw_gb_per_s": busbw}
        rates["calls"] = 1 if timing == "single" else 20
    kind = {"timing": timing, "impl": impl, "clock": clock, "size_bytes": size_bytes, "oversubscribed": False}
    ranks = {"rank_min_ms": 0.98 * median_ms, "rank_mean_ms": 0.99 * median_ms, "rank_max_ms": median_ms}
    return timed(median_ms, **{**asdict(cell), **kind, **rates, **ranks, "mean_ms": median_ms, **SHARED, **columns})


def measured(cell, slower=1):
    latency_s, bus_bytes_per_s, extra_s = COSTS[cell.backend]
    on_gpu = cell.backend == "nccl"
    events = "cuda_events" if on_gpu else "host"
    rows = [row(cell, "set_up", 0.2), row(cell, "first_call", 0.05, size_bytes=SIZES_BYTES[0], placement="in_place")]
    rows += [row(cell, "set_up", 0.1, impl="nccl")] if on_gpu else []
    for size in SIZES_BYTES:
        burst_s = latency_s + size * nccl_tests_bus_factor(cell.collective, cell.world_size) / bus_bytes_per_s
        of_size = {"size_bytes": size, "slower": slower}
        rows.append(row(cell, "burst", burst_s, events, parts=min(21, SIZES_BYTES[-1] // size), **of_size))
        rows.append(row(cell, "single", burst_s + extra_s, **of_size))
        if on_gpu:
            rows.append(row(cell, "single", burst_s + extra_s / 2, events, **of_size))
            rows += [row(cell, "graph", 0.8 * burst_s, events, **of_size)] if size <= 1e6 else []
        if cell.is_called_directly:
            for placement, share in {"in_place": 0.99, "out_of_place": 0.97}.items():
                direct = {"impl": "nccl", "placement": placement}
                rows.append(row(cell, "burst", burst_s * share, events, **direct, **of_size))
    return rows


def outcome(cell, status, reason):
    return [failed(status, **{**asdict(cell), **SHARED, **key, "reason": reason}) for key in cell.row_keys()]


def h200():
    cells = [*(Cell("gloo", size) for size in (2, 4, 6)), *(Cell("nccl", size) for size in (2, 4))]
    return [*(row for cell in cells for row in measured(cell)), *outcome(Cell("nccl", 8), "skipped", "needs 8 GPUs")]


def node():
    cells = [Cell("nccl", 8, 1, collective, dtype) for dtype in ("fp32", "bf16") for collective in COLLECTIVES]
    return [row for cell in cells for row in measured(cell)]


def cluster():
    return h200() + measured(Cell("nccl", 4, 2), slower=10)  # a tenth of the bandwidth within a node


def laptop():
    rows = [row | {"oversubscribed": size == 4} for size in (2, 4) for row in measured(Cell("gloo", size))]
    rows = [row | {"cores": 2, "machine": "AMD EPYC"} for row in rows]
    rows[2] |= {"status": "unstable", "reason": "median known to 7.0% only"}
    return rows + outcome(Cell("nccl", 2), "skipped", "NCCL needs a GPU for each of 2 ranks, none present")


def smoke():
    return [row for row in measured(Cell("gloo", 2)) if row["size_bytes"] in (SIZES_BYTES[0], None)]


MACHINES = {"h200": h200, "node": node, "cluster": cluster, "laptop": laptop, "smoke": smoke}


@pytest.fixture(scope="session")
def make_rows():
    """Make all rows of a machine by its name, as a section gets them."""
    return lambda name: frame_of("collectives", MACHINES[name]())
