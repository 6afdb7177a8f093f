"""Rows of the ceilings stage: rates of matrix products, memory and links, and the host's time per launch."""

from dataclasses import dataclass
from typing import Any

from pipeline.cells.rated_rows import gpu_name
from pipeline.cells.rows import Reading, RowTypes, column, derived
from pipeline.cells.timed_rows import GpuTimedRow
from pipeline.instruments.machine.peaks import datasheet_gb_per_s, datasheet_peak_tflops
from pipeline.stages.ceilings.cell import DTYPES, KINDS

# How often a call moves its tensor: a copy within a memory reads and writes it, a copy over a link sends it once.
PASSES = {"copy": 2, "l2_copy": 2, "reduction": 1, "to_device": 1, "to_host": 1, "to_peer": 1}
# Kinds to compare with the memory bandwidth on the data sheet.
OF_MEMORY = ("copy", "reduction")


@dataclass(frozen=True, kw_only=True)
class Product(GpuTimedRow):
    """One product of two square matrices of random normal numbers."""

    KEYS = ("dtype", "side")

    dtype: str = column("type of the inputs; tf32: fp32 inputs on TF32 tensor cores", allowed=DTYPES)
    side: int | None = column("rows and columns of each matrix", minimum=1)
    tflops_per_s: float = derived("10^12 multiplications and additions per second, at the median time", positive=True)
    datasheet_tflops_per_s: float | None = derived("dense rate on the GPU's data sheet", positive=True)

    @classmethod
    def timed_columns(cls, reading: Reading, median_ms: float) -> dict[str, Any]:
        """Return the rate, measured and on the data sheet."""
        row = reading.row
        rate = 2 * row["side"] ** 3 / median_ms / 1e9
        promised = datasheet_peak_tflops(gpu_name(reading), row["dtype"])
        return {"tflops_per_s": rate, "datasheet_tflops_per_s": promised}


@dataclass(frozen=True, kw_only=True)
class Transfer(GpuTimedRow):
    """One call that does nothing but move data."""

    KEYS = ("kind",)
    WORK = ("tensor_bytes",)

    kind: str = column(
        "copy, reduction: within the memory; l2_copy: within the GPU's L2 cache; to_device, to_host: between pinned "
        "host memory and the GPU; to_peer: to another GPU",
        allowed=(*KINDS["memory"], *KINDS["host_link"], *KINDS["peer_link"]),
    )
    tensor_bytes: int = column("size of the tensor that is read", minimum=1)
    gb_per_s: float = derived(
        "10^9 bytes per second, at the median time; a copy within a memory counts twice", positive=True
    )
    datasheet_gb_per_s: float | None = derived("memory bandwidth on the GPU's data sheet", positive=True)

    @classmethod
    def timed_columns(cls, reading: Reading, median_ms: float) -> dict[str, Any]:
        """Return the rate, measured and on the data sheet."""
        row = reading.row
        rate = PASSES[row["kind"]] * row["tensor_bytes"] / median_ms / 1e6
        promised = datasheet_gb_per_s(gpu_name(reading)) if row["kind"] in OF_MEMORY else None
        return {"gb_per_s": rate, "datasheet_gb_per_s": promised}


@dataclass(frozen=True, kw_only=True)
class HostCost(GpuTimedRow):
    """Host time for one operator on one number."""

    KEYS = ("kind",)

    kind: str = column(
        "launch: a single launch, until the GPU has finished; operator: one among a thousand, until it is queued or, "
        "on a CPU, done",
        allowed=KINDS["launches"],
    )


ROW_TYPES = RowTypes(
    {"matmul": Product, "memory": Transfer, "host_link": Transfer, "peer_link": Transfer, "launches": HostCost},
    kind_column="what",
)
