"""Make the rows of a health cell on machines with several GPUs, from a model of their noise."""

from itertools import accumulate, permutations, product

import numpy as np
import pytest

from pipeline.stages.health.cell import LOADS, WORKS, Cell, Settings

from ...records import derived

SETTINGS = Settings()
MODEL = "NVIDIA H100 80GB HBM3"
WORK_MS = {"matmul": 1.5, "copy": 0.8}
SOUND = {"utilization_before_pct": 0, "ecc_corrected": 3, "ecc_uncorrected": 0, "failed_row_remaps": 0}
SOUND |= {"max_pcie_generation": 5, "max_pcie_width": 16, "nvlinks": 18, "nvlinks_up": 18, "nvlink_recoveries": 0}
SOUND |= {"sm_clocks_mhz": [1980.0, 1500.0], "powers_w": [690.0, 700.0], "temperatures_c": [60.0, 64.0]}
SOUND |= {"pcie_generations": [5, 5], "pcie_widths": [16, 16], "throttle_reasons": ["gpu_idle", "sw_power_cap"]}
UNTOLD = dict.fromkeys(SOUND)


def noise(rng, median_ms, count):
    """Return autocorrelated samples that drift by 1% and are 10% late one time in twenty."""
    values = np.array([*accumulate(0.004 * rng.standard_normal(count), lambda before, new: 0.5 * before + new)])
    late = 0.1 * (rng.random(count) < 0.05)
    return (median_ms * (1 + np.linspace(0, 0.01, count) + values + late)).tolist()


def key(index):
    return {"gpu_index": index, "uuid": f"GPU-{index}ace0123-4567", "model": MODEL}


def timed(rng, median_ms, count=60):
    return {"status": "ok", "calls": 7, "samples_ms": noise(rng, median_ms, count)}


def recorded(rng, gpus, slower=None, links=True):
    """Return the rows of several GPUs, which differ by 0.7% as real cards do; slower: a factor by GPU or pair."""
    slower = slower or {}
    cards = 1 + 0.007 * rng.standard_normal(gpus)
    rows = [{"kind": "gpu", **key(index), "status": "ok", **SOUND, "absent": []} for index in range(gpus)]
    rows += [
        {"kind": "rate", **key(index), "work": work, "load": load, "size": 8192}
        | timed(rng, WORK_MS[work] * cards[index] * slower.get(index, 1.0))
        for work, load, index in product(WORKS, LOADS, range(gpus))
    ]
    rows += [
        {"kind": "link", **key(source), "peer_index": target, "path": "NVLink", "is_direct": True, "size": 2**28}
        | timed(rng, 0.7 * slower.get((source, target), 1.0), 20)
        for source, target in permutations(range(gpus if links else 0), 2)
    ]
    return rows


def read(rows):
    return derived(Cell(), SETTINGS, rows)


def slow(rows):
    return {(row["gpu_index"], row.get("peer_index")) for row in rows if row.get("verdict") == "slow"}


@pytest.fixture
def rng():
    return np.random.default_rng(0)
