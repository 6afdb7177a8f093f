"""The tiles worth trying for a kernel: those that fit on Hopper, spill little, and keep the tensor cores fed."""

import itertools
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

from triton.compiler.errors import CompilationError
from triton.runtime.errors import OutOfResources, PTXASError

from pipeline.attention.triton.kernels import forward, key_value, query
from pipeline.attention.triton.tiles import TileConfig
from tools.tuning.compiled import KernelReport, compile_for_hopper

KERNELS = {
    "forward": forward.forward_kernel,
    "key_value": key_value.key_value_kernel,
    "key_value_dq": key_value.key_value_kernel,
    "query": query.query_kernel,
}
SHARED_BYTES_PER_PROGRAM = 227 * 1024
MOST_SPILLS = 60
# With fp32's split operands a kernel that spills and uses wgmma was faster than one that does neither.
MOST_SPILLS_FP32 = 500


@dataclass(frozen=True)
class Candidate:
    """Tiles for one kernel, and what the compiler made of them."""

    dtype: str
    tiles: TileConfig
    report: KernelReport

    @property
    def is_promising(self) -> bool:
        """Tell whether it fits and nothing in its machine code suggests that it is slow."""
        fits = self.report.shared_bytes <= SHARED_BYTES_PER_PROGRAM
        # fp32's split operands fill the registers at tiles large enough for wgmma, so mma.sync is worth a try.
        feeds_tensor_cores = self.dtype == "fp32" or (self.report.wgmma > 0 and self.report.mma_sync == 0)
        is_fed = feeds_tensor_cores and not self.report.is_serialised
        most_spills = MOST_SPILLS_FP32 if self.dtype == "fp32" else MOST_SPILLS
        return fits and is_fed and self.report.spill_instructions <= most_spills


def promising(kernel: str, dtype: str, head_dim: int) -> list[Candidate]:
    """Compile every combination of tiles and options, in one process per core; return the promising ones."""
    jobs = [(kernel, dtype, head_dim, tiles) for tiles in _combinations(16 if dtype == "fp32" else 32)]
    with ProcessPoolExecutor() as executor:
        compiled = [candidate for candidate in executor.map(_compile, jobs) if candidate is not None]
    return [candidate for candidate in compiled if candidate.is_promising]


def constants(kernel: str, dtype: str, head_dim: int, tiles: TileConfig) -> dict[str, Any]:
    """Return a kernel's compile-time arguments for a long causal sequence."""
    shared = {
        "HAS_START": False,
        "HAS_END": True,
        "band_end": 1,
        "heads_per_kv": 1,
        "HEAD_DIM": head_dim,
        "BLOCK_QUERIES": tiles.block_queries,
        "BLOCK_KEYS": tiles.block_keys,
        "CHUNKED": False,
        "TMA": True,
        "PRECISION": "tf32x3" if dtype == "fp32" else "tf32",
    }
    if kernel == "forward":
        return {**shared, "MAY_HIDE_ALL": False}
    if kernel == "query":
        return shared
    sums_dq = kernel == "key_value_dq"
    added = {} if sums_dq else {"dq_sum_ptr": None}
    return {**shared, **added, "MASK_KEYS": False, "ADD_DQ": sums_dq, "TMA_REDUCE": sums_dq}


def _combinations(smallest: int) -> Iterator[TileConfig]:
    sizes = [size for size in (16, 32, 64, 128) if size >= smallest]
    axes = itertools.product(sizes, sizes, (4, 8), (1, 2, 3), (None, 168))
    for block_queries, block_keys, num_warps, num_stages, max_registers in axes:
        if max_registers is None or num_warps == 4:  # the cap makes room for a third program of four warps
            yield TileConfig(block_queries, block_keys, num_warps, num_stages, max_registers)


def _compile(job: tuple[str, str, int, TileConfig]) -> Candidate | None:
    kernel, dtype, _, tiles = job
    try:
        report = compile_for_hopper(KERNELS[kernel], constants(*job), tiles, dtype)
    except (CompilationError, OutOfResources, PTXASError, RuntimeError):
        return None  # Triton refuses some combinations, e.g. more warps than a tile has rows for
    return Candidate(dtype, tiles, report)
