"""Compile every kernel that the plans can ask for, for a GPU that need not be there, and print what each takes of it.

    python -m tools.tuning.every_gpu sm_86 --sample

Use a separate process for this: afterwards it takes the made-up GPU for its own.
"""

import argparse
import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from pipeline.attention.inputs import Traits
from pipeline.attention.triton import backward_ends, backward_plan, direct_launch, forward_plan
from pipeline.attention.triton.gpu import KIB, Gpu
from pipeline.attention.triton.mask import CAUSAL, FULL, Band
from pipeline.attention.triton.problem import Problem
from pipeline.attention.triton.tiles import PLAIN, Choices, TileConfig
from tools.tuning.machine_code import machine_code

# By the compilers' names; the shared memory is the limit per program.
GPUS = {
    "sm_80": Gpu("A100", "nvidia", (8, 0), 108, 163 * KIB),
    "sm_86": Gpu("RTX 3090, A10", "nvidia", (8, 6), 82, 99 * KIB),
    "sm_89": Gpu("RTX 4090, L4", "nvidia", (8, 9), 128, 99 * KIB),
    "sm_90": Gpu("H200", "nvidia", (9, 0), 132, 227 * KIB),
    "sm_100": Gpu("B200", "nvidia", (10, 0), 148, 227 * KIB),
    "sm_120": Gpu("RTX 5090", "nvidia", (12, 0), 170, 99 * KIB),
    "gfx942": Gpu("MI300X", "amd", (9, 4), 304, 64 * KIB),
}
DEVICE = torch.device("cuda", 0)
WIDTHS = (16, 32, 64, 128, 256)
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}  # fp16 has the tiles of bf16, and its size
WINDOW = Band(-99, 1)
# (batch · heads, length): one for each branch of `Choices`, with enough programs that nothing is cut into chunks.
ONE_TILE, SHORT, MIDDLE, LONG = (4096, 100), (4096, 512), (512, 4096), (256, 32768)
IN_CHUNKS = (1, 8192)


def problems(dtype: str, sample: bool) -> Iterator[Problem]:
    """Yield problems that together use every tile of the tables, or only one problem for a sample."""
    if sample:
        yield _problem(dtype, 128, MIDDLE)
        return
    for head_dim, size in itertools.product(WIDTHS, (ONE_TILE, SHORT, MIDDLE, LONG)):
        yield _problem(dtype, head_dim, size)
    yield _problem(dtype, 80, MIDDLE)
    for head_dim, band in itertools.product((64, 128), (FULL, WINDOW)):
        yield _problem(dtype, head_dim, MIDDLE, band)
    for head_dim in (64, 128):
        yield _problem(dtype, head_dim, IN_CHUNKS)
    if dtype == "fp32":
        yield from (_problem(dtype, head_dim, MIDDLE, one_tf32_product=True) for head_dim in (64, 128))


def _problem(
    dtype: str, head_dim: int, size: tuple[int, int], band: Band = CAUSAL, one_tf32_product: bool = False
) -> Problem:
    shape = torch.Size((*size, head_dim))
    q = Traits(shape, torch.empty(shape, device="meta").stride(), DTYPES[dtype], DEVICE)
    return Problem(q, q, q, None, band, head_dim**-0.5, one_tf32_product, 0)


def compile_all(name: str, sample: bool = False, choices: Choices = PLAIN) -> Iterator[dict[str, Any]]:
    """Compile all kernels of the plans for a GPU of `GPUS`; yield a row for each: what it is and what it takes."""
    asked_for: list[Asked] = []
    _pretend(name, asked_for)
    told = set()
    for dtype in DTYPES:
        for problem in problems(dtype, sample):
            forward_plan.forward_plan(problem, choices)
            strides = (problem.q.stride,) * 4
            backward_plan.backward_plan(problem, *strides, choices=choices)
        for asked in asked_for:
            if asked.key not in told:
                told.add(asked.key)
                yield {"gpu": name, "dtype": dtype, **asked.row()}
        asked_for.clear()


@dataclass(frozen=True)
class Asked:
    """A kernel that a plan asks for, with the arguments of `prepare_launch`."""

    kernel: Any
    programs: int
    dtypes: Sequence[torch.dtype | None]
    scalars: Sequence[float]
    constants: dict[str, Any]
    tiles: TileConfig

    @property
    def key(self) -> tuple[Any, ...]:
        """Return what distinguishes compiled kernels; scalars hardly matter."""
        return (self.kernel.__name__, *self.dtypes, *self.constants.items(), self.tiles)

    def row(self) -> dict[str, Any]:
        """Compile the kernel; return its name, its tiles, and what it takes."""
        started = time.perf_counter()
        options = direct_launch.launch_options(self.tiles)
        compiled = self.kernel.warmup(*self.dtypes, *self.scalars, grid=(1, 1, 1), **self.constants, **options)
        code = machine_code(compiled)
        flags = [name for name, value in self.constants.items() if value is True]
        return {
            "kernel": self.kernel.__name__.removesuffix("_kernel"),
            "head_dim": self.constants.get("HEAD_DIM"),
            "tiles": ",".join(map(str, astuple(self.tiles)[:4])),
            "flags": " ".join(flags),
            "shared_bytes": compiled.metadata.shared,
            "tensor_memory_columns": getattr(compiled.metadata, "tmem_size", None) or 0,
            "registers": code.registers,
            "spills": code.spills,
            "spills_in_loops": code.spills_in_loops,
            "seconds": round(time.perf_counter() - started, 1),
        }


def _pretend(name: str, asked_for: list[Asked]) -> None:
    """Plan for a GPU as if it were present, and collect the kernels that plans ask for instead of launching them."""
    made_up = GPUS[name]
    arch: int | str = int(name.removeprefix("sm_")) if made_up.vendor == "nvidia" else name
    target = GPUTarget("cuda" if made_up.vendor == "nvidia" else "hip", arch, 32 if made_up.vendor == "nvidia" else 64)
    driver.set_active(
        SimpleNamespace(
            get_current_target=lambda: target,
            get_current_device=lambda: DEVICE.index,
            get_current_stream=lambda _device: 0,
        )
    )
    planning: tuple[Any, ...] = (forward_plan, backward_plan, backward_ends)
    for module in (direct_launch, *planning):
        module.gpu_of = lambda _device: made_up
    for module in planning:
        module.prepare_launch = lambda *asked: asked_for.append(Asked(*asked))
        module.like = lambda *_traits: None


def main() -> None:
    """Print a row for each kernel as soon as it is compiled, and write all to a file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("gpu", choices=list(GPUS))
    parser.add_argument("--sample", action="store_true", help="head_dim 128 only")
    parser.add_argument("--out", type=Path, metavar="TABLE.csv")
    arguments = parser.parse_args()
    rows = []
    for row in compile_all(arguments.gpu, arguments.sample):
        rows.append(row)
        print(*row.values(), sep="  ", flush=True)
    if arguments.out:
        pd.DataFrame(rows).to_csv(arguments.out, index=False)


if __name__ == "__main__":
    main()
