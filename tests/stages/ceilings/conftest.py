"""Ceilings of two machines, as cells leave them: one with a GPU, whose second is missing, and a CPU."""

import pandas as pd
import pytest

from pipeline.instruments.machine.ceilings import Ceiling
from pipeline.stages.ceilings.cell import DTYPES, KINDS, Cell, Settings

from ...report.frames import samples

PEAKS = {"bf16": 989.4, "fp16": 989.4, "tf32": 494.7, "fp32": 66.9, "fp8": 1978.9}
GB_PER_S = {"copy": 4100.0, "reduction": 4400.0, "l2_copy": 7300.0, "to_device": 55.0, "to_host": 52.0}
CPU_GFLOPS = {"bf16": 40.0, "fp32": 120.0}


def timed(median_ms, on_gpu, **key):
    clocks = {"sm_clock_mhz": 1980, "mean_sm_clock_mhz": 1900.0, "power_capped": False} if on_gpu else {}
    return {**key, "status": "ok", **clocks, "samples_ms": samples(median_ms)}


def product(dtype, side, tflops_per_s, on_gpu):
    return timed(Ceiling("matmul", side, dtype).flops / tflops_per_s / 1e9, on_gpu, dtype=dtype, side=side)


def transfer(kind, tensor_bytes, gb_per_s, on_gpu):
    median_ms = Ceiling(kind, tensor_bytes).moved_bytes / gb_per_s / 1e6
    return timed(median_ms, on_gpu, kind=kind, tensor_bytes=tensor_bytes)


def skipped(reason, **key):
    return {**key, "status": "skipped", "reason": reason}


def h200():
    return {
        "matmul": [
            product(dtype, side, 0.75 * PEAKS[dtype] * min(1, side / 8192), True)
            for dtype in DTYPES
            for side in Settings().sides()
        ],
        **{
            what: [transfer(kind, 2**30, GB_PER_S[kind], True) for kind in KINDS[what]]
            for what in ("memory", "host_link")
        },
        "peer_link": [skipped("needs 2 GPUs, 1 present", kind="to_peer")],
        "launches": [timed(0.011, True, kind="launch"), timed(0.0043, True, kind="operator")],
    }


def laptop():
    of_gpus = {what: [skipped(f"{kind} needs a GPU", kind=kind) for kind in kinds] for what, kinds in KINDS.items()}
    measured = [product(dtype, side, rate / 1e3, False) for dtype, rate in CPU_GFLOPS.items() for side in (256, 1024)]
    slow = skipped("would take about 9 s a product", dtype="bf16", side=2048)
    memory = [transfer(kind, 2**28, 11.0, False) for kind in ("copy", "reduction")]
    return of_gpus | {
        "matmul": [*measured, slow, *(skipped(f"{each} needs a GPU", dtype=each) for each in ("fp16", "tf32", "fp8"))],
        "memory": [*memory, of_gpus["memory"][-1]],
        "launches": [of_gpus["launches"][0], timed(0.0009, False, kind="operator")],
    }


MACHINES = {"NVIDIA H200": h200, "AMD EPYC": laptop}


@pytest.fixture(scope="session")
def make_rows(as_table):
    """Make rows of a machine by its name (NVIDIA H200 or AMD EPYC), of all cells or these, as a section gets them."""

    def make(machine, *asked):
        cells = MACHINES[machine]()
        tables = [as_table(Cell(what), Settings(), cells[what], machine) for what in asked or cells]
        return pd.concat(tables, ignore_index=True)

    return make
