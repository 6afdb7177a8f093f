"""Synthetic ceilings of two machines, as cells leave them: one with a GPU, whose second is missing, and a CPU."""

import numpy as np
import pandas as pd
import pytest

from pipeline.cells.timed_rows import summarise
from pipeline.instruments.machine.ceilings import Ceiling
from pipeline.stages.ceilings.cell import DTYPES, KINDS, Cell, Settings

PEAKS = {"bf16": 989.4, "fp16": 989.4, "tf32": 494.7, "fp32": 66.9, "fp8": 1978.9}
GB_PER_S = {"copy": 4100.0, "reduction": 4400.0, "l2_copy": 7300.0, "to_device": 55.0, "to_host": 52.0}
HOST_MS = {"launch": 0.011, "operator": 0.0043}
CPU_GFLOPS = {"bf16": 40.0, "fp32": 120.0}


def timed(rng, median_ms, on_gpu):
    samples_ms = (median_ms * (1 + 0.01 * rng.standard_normal(10))).tolist()
    clocks = {"sm_clock_mhz": 1980, "mean_sm_clock_mhz": 1900.0, "power_capped": False} if on_gpu else {}
    return {"status": "ok", **summarise(samples_ms), **clocks, "samples_ms": samples_ms}


def product(rng, dtype, side, tflops_per_s, on_gpu):
    row = timed(rng, Ceiling("matmul", side, dtype).flops / tflops_per_s / 1e9, on_gpu)
    rate = Ceiling("matmul", side, dtype).tflops_per_s(row["median_ms"])
    return {
        **{"dtype": dtype, "side": side, "tflops_per_s": rate, **row},
        "datasheet_tflops_per_s": PEAKS[dtype] if on_gpu else None,
    }


def transfer(rng, kind, tensor_bytes, gb_per_s, on_gpu):
    row = timed(rng, Ceiling(kind, tensor_bytes).moved_bytes / gb_per_s / 1e6, on_gpu)
    rate = Ceiling(kind, tensor_bytes).gb_per_s(row["median_ms"])
    promised = 4800.0 if on_gpu and kind in ("copy", "reduction") else None
    return {"kind": kind, "tensor_bytes": tensor_bytes, "gb_per_s": rate, "datasheet_gb_per_s": promised, **row}


def skipped(reason, **key):
    return {**key, "status": "skipped", "reason": reason}


def h200(rng):
    sides = Settings().sides()
    products = [
        product(rng, dtype, side, 0.75 * PEAKS[dtype] * min(1, side / 8192), True) for dtype in DTYPES for side in sides
    ]
    return {
        "matmul": products,
        "memory": [transfer(rng, kind, 2**30, GB_PER_S[kind], True) for kind in KINDS["memory"]],
        "host_link": [transfer(rng, kind, 2**28, GB_PER_S[kind], True) for kind in KINDS["host_link"]],
        "peer_link": [skipped("needs 2 GPUs, 1 present", kind="to_peer")],
        "launches": [{"kind": kind, **timed(rng, HOST_MS[kind], True)} for kind in KINDS["launches"]],
    }


def laptop(rng):
    measured = [
        product(rng, dtype, side, gflops / 1e3, False) for dtype, gflops in CPU_GFLOPS.items() for side in (256, 1024)
    ]
    slow = skipped("would take about 9 s a product", dtype="bf16", side=2048)
    lacking = [skipped(f"{dtype} needs a GPU", dtype=dtype) for dtype in ("fp16", "tf32", "fp8")]
    memory = [transfer(rng, kind, 2**28, 11.0, False) for kind in ("copy", "reduction")]
    operator = {"kind": "operator", **timed(rng, 0.0009, False)}
    return {
        "matmul": [*measured, slow, *lacking],
        "memory": [*memory, skipped("l2_copy needs a GPU", kind="l2_copy")],
        **{
            what: [skipped(f"{kind} needs a GPU", kind=kind) for kind in KINDS[what]]
            for what in ("host_link", "peer_link")
        },
        "launches": [skipped("launch needs a GPU", kind="launch"), operator],
    }


MACHINES = {"NVIDIA H200": h200, "AMD EPYC": laptop}


@pytest.fixture(scope="session")
def make_rows(as_table):
    """Make rows of a machine by its name (NVIDIA H200 or AMD EPYC), of all cells or these, as a section gets them."""

    def make(machine, *asked):
        cells = MACHINES[machine](np.random.default_rng(0))
        tables = [as_table(Cell(what), Settings(), cells[what], machine) for what in asked or cells]
        return pd.concat(tables, ignore_index=True)

    return make
