"""Tables of collectives by hand, from a cost model: latency and bandwidth of a backend, and what a single call adds."""

from dataclasses import asdict

import numpy as np
import pandas as pd
import pytest

from pipeline.formulas.collectives import nccl_tests_bus_factor
from pipeline.registry import stages
from pipeline.report.frame import fold
from pipeline.stages.collectives.cell import COLLECTIVES, Cell

SIZES_BYTES = (1_000_000, 10_000_000, 100_000_000, 1_000_000_000)
# Latency and bus bandwidth in a burst, and what a single call adds by the host clock.
COSTS = {"gloo": (300e-6, 1.2e9, 100e-6), "nccl": (15e-6, 320e9, 60e-6)}
SHARED = {
    "setting_warmup_calls": 5,
    "setting_unstable_rel_error": 0.05,
    "cores": 96,
    "torch": "2.11.0",
    "machine": "NVIDIA H200",
    "cuda": "13.0",
}


def row(rng, cell, timing, impl, placement, clock, size_bytes, seconds, machine=None):
    samples_ms = seconds * 1e3 * (1 + 0.01 * rng.standard_normal(10))
    median_ms = float(np.median(samples_ms))
    algbw = size_bytes / median_ms / 1e6 if timing in ("burst", "single", "graph") else np.nan
    return {
        **asdict(cell),
        "timing": timing,
        "impl": impl,
        "placement": placement,
        "clock": clock,
        "size_bytes": size_bytes,
        "calls": {"burst": 20, "graph": 20, "single": 1}.get(timing, np.nan),
        "parts": min(21, SIZES_BYTES[-1] // size_bytes) if timing == "burst" else np.nan,
        "status": "ok",
        "cards": "a GPU",
        "samples_ms": list(samples_ms),
        "n": len(samples_ms),
        "median_ms": median_ms,
        "q1_ms": np.quantile(samples_ms, 0.25),
        "q3_ms": np.quantile(samples_ms, 0.75),
        "mean_ms": samples_ms.mean(),
        "rank_min_ms": median_ms * 0.98,
        "rank_mean_ms": median_ms * 0.99,
        "rank_max_ms": median_ms,
        "algbw_gb_per_s": algbw,
        "busbw_gb_per_s": algbw * nccl_tests_bus_factor(cell.collective, cell.world_size),
        "oversubscribed": False,
        **SHARED,
    }


def measured(rng, cell):
    latency_s, bus_bytes_per_s, extra_s = COSTS[cell.backend]
    rows = [row(rng, cell, "set_up", "torch", np.nan, "host", np.nan, 0.2)]
    rows.append(row(rng, cell, "first_call", "torch", "in_place", "host", SIZES_BYTES[0], 0.05))
    if cell.backend == "nccl":
        rows.append(row(rng, cell, "set_up", "nccl", np.nan, "host", np.nan, 0.1))
    for size in SIZES_BYTES:
        burst_s = latency_s + size * nccl_tests_bus_factor(cell.collective, cell.world_size) / bus_bytes_per_s
        clock = "cuda_events" if cell.backend == "nccl" else "host"
        rows.append(row(rng, cell, "burst", "torch", cell.placement, clock, size, burst_s))
        rows.append(row(rng, cell, "single", "torch", cell.placement, "host", size, burst_s + extra_s))
        if cell.backend == "nccl":
            rows.append(row(rng, cell, "single", "torch", cell.placement, "cuda_events", size, burst_s + extra_s / 2))
        if cell.backend == "nccl" and size <= 1e6:
            rows.append(row(rng, cell, "graph", "torch", cell.placement, "cuda_events", size, 0.8 * burst_s))
        if cell.is_called_directly:
            rows.append(row(rng, cell, "burst", "nccl", "in_place", clock, size, burst_s * 0.99))
            rows.append(row(rng, cell, "burst", "nccl", "out_of_place", clock, size, burst_s * 0.97))
    return rows


def outcome(cell, status, reason):
    base = {**asdict(cell), "status": status, "reason": reason, **SHARED}
    return [base | key for key in cell.row_keys()]


def h200(rng):
    gloo = [row for size in (2, 4, 6) for row in measured(rng, Cell("gloo", size))]
    nccl = [row for size in (2, 4) for row in measured(rng, Cell("nccl", size))]
    return [*gloo, *nccl, *outcome(Cell("nccl", 8), "skipped", "needs 8 GPUs, 4 present")]


def node(rng):
    cells = [Cell("nccl", 8, 1, collective, dtype) for dtype in ("fp32", "bf16") for collective in COLLECTIVES]
    return [row for cell in cells for row in measured(rng, cell)]


def cluster(rng):
    within, across = h200(rng), measured(rng, Cell("nccl", 4, 2))
    for line in across:  # a tenth of the bandwidth within a node
        line |= {name: line[name] * 10 for name in ("median_ms", "q1_ms", "q3_ms", "mean_ms")}
        line |= {name: line[name] / 10 for name in ("algbw_gb_per_s", "busbw_gb_per_s")}
    return within + across


def laptop(rng):
    rows = [row for size in (2, 4) for row in measured(rng, Cell("gloo", size))]
    for row in rows:
        row |= {"cores": 2, "oversubscribed": row["world_size"] == 4, "machine": "AMD EPYC"}
    rows[2] |= {"status": "unstable", "reason": "median known to 7.0% only"}
    return rows + nothing(rng)


def smoke(rng):
    rows = [row for row in measured(rng, Cell("gloo", 2)) if row["size_bytes"] in (SIZES_BYTES[0], np.nan)]
    return [{**row, "machine": "AMD EPYC"} for row in rows]


def nothing(_rng):
    return outcome(Cell("nccl", 2), "skipped", "NCCL needs a GPU for each of 2 ranks, none present")


MACHINES = {"h200": h200, "node": node, "cluster": cluster, "laptop": laptop, "smoke": smoke, "nothing": nothing}


@pytest.fixture(scope="session")
def make_rows():
    """Make all rows of a machine by its name, as a section gets them."""
    row_types, axes = stages()["collectives"].row_types, stages()["collectives"].axes

    def make(name):
        rows = pd.DataFrame(MACHINES[name](np.random.default_rng(0)))
        rows = rows.reindex(columns=list(dict.fromkeys([*rows, *row_types.column_names()])))
        return fold(rows, [*axes, *row_types.key_columns()])

    return make
