"""What the ceilings stage leaves: rates of products, memory and links, and the host's time for a launch."""

from dataclasses import dataclass

from pipeline.cells.rows import RowTypes, column
from pipeline.cells.timed_rows import GpuTimedRow
from pipeline.stages.ceilings.cell import DTYPES, KINDS


@dataclass(frozen=True, kw_only=True)
class Product(GpuTimedRow):
    """One product of two square matrices of normal numbers."""

    KEYS = ("dtype", "side")

    dtype: str = column("what is multiplied; tf32: fp32 numbers in TF32 tensor cores", allowed=DTYPES)
    side: int | None = column("rows and columns of each matrix", minimum=1)
    tflops_per_s: float = column("10^12 multiplications and additions a second, at the median time", positive=True)
    datasheet_tflops_per_s: float | None = column("dense rate that the GPU's data sheet promises", positive=True)


@dataclass(frozen=True, kw_only=True)
class Transfer(GpuTimedRow):
    """One call that does nothing but move data."""

    KEYS = ("kind",)

    kind: str = column(
        "copy and reduction: within the memory; l2_copy: within the GPU's L2 cache; to_device, to_host: between pinned "
        "memory of the host and the GPU; to_peer: to another GPU",
        allowed=(*KINDS["memory"], *KINDS["host_link"], *KINDS["peer_link"]),
    )
    tensor_bytes: int = column("size of the tensor that is read", minimum=1)
    gb_per_s: float = column(
        "10^9 bytes a second, at the median time; a copy within a memory counts twice", positive=True
    )
    datasheet_gb_per_s: float | None = column("bandwidth of the memory by the GPU's data sheet", positive=True)


@dataclass(frozen=True, kw_only=True)
class HostCost(GpuTimedRow):
    """What the host takes for one operator on one number."""

    KEYS = ("kind",)

    kind: str = column(
        "launch: a lone one, until the GPU is known to have done it; operator: one among a thousand, until it is "
        "queued or, on a CPU, done",
        allowed=KINDS["launches"],
    )


ROW_TYPES = RowTypes(
    {"matmul": Product, "memory": Transfer, "host_link": Transfer, "peer_link": Transfer, "launches": HostCost},
    kind_column="what",
)
