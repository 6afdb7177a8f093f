"""Time one of the Triton kernels, on causal shapes, with every promising choice of tiles."""

import dataclasses
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pandas as pd
import torch
import triton.testing
from torch import Tensor

from pipeline.attention.triton.backward_plan import backward_plan
from pipeline.attention.triton.forward_plan import forward_plan
from pipeline.attention.triton.problem import problem_of
from pipeline.attention.triton.running import run_chunked, run_forward, working_memory
from pipeline.attention.triton.tiles import PLAIN, TileConfig
from tools.tuning.candidates import KERNELS, Candidate, promising
from tools.tuning.command_line import DTYPES, parsed

WARM_UP_MS, MEASURE_MS = 10, 40


def sweep(kernel: str, dtype: str, shape: tuple[int, int, int, int], candidates: list[Candidate]) -> pd.DataFrame:
    """Time each candidate on a causal shape (batch, heads, seq_len, head_dim); return one row each, the fastest first.

    Columns: the tiles, what the compiler reports, median_ms, and rel_error: the `largest_deviation` from the results
    with the tiles in use.
    """
    generator = torch.Generator("cuda").manual_seed(0)
    q, k, v, do = (torch.randn(shape, generator=generator, device="cuda").to(DTYPES[dtype]) for _ in range(4))
    expected = _prepare(kernel, q, k, v, do, None)()
    rows = []
    for candidate in candidates:
        run = _prepare(kernel, q, k, v, do, candidate.tiles)
        rel_error = largest_deviation(run(), expected)
        median_ms = triton.testing.do_bench(run, WARM_UP_MS, MEASURE_MS, return_mode="median")
        rows.append(
            dataclasses.asdict(candidate.tiles)
            | dataclasses.asdict(candidate.report)
            | {"median_ms": median_ms, "rel_error": rel_error}
        )
    return pd.DataFrame(rows).sort_values("median_ms")


def largest_deviation(found: Iterable[Tensor], expected: Iterable[Tensor]) -> float:
    """Return the largest error of any tensor, relative to the largest number in the expected one."""
    return max(((a - e).abs().max() / e.abs().max()).item() for a, e in zip(found, expected, strict=True))


def _prepare(
    kernel: str, q: Tensor, k: Tensor, v: Tensor, do: Tensor, tiles: TileConfig | None
) -> Callable[[], list[Tensor]]:
    """Return a function that runs one kernel and returns its results; tiles: None for those in use."""
    if kernel == "forward":
        problem = problem_of(q, k, v, True)
        planner = partial(forward_plan, choices=dataclasses.replace(PLAIN, forward_tiles=tiles))
        return lambda: [run_forward(problem, q, k, v, planner)[0]]
    return _prepare_backward(kernel, q, k, v, do, tiles)


def _prepare_backward(
    kernel: str, q: Tensor, k: Tensor, v: Tensor, do: Tensor, tiles: TileConfig | None
) -> Callable[[], list[Tensor]]:
    problem = problem_of(q, k, v, True)
    o, lse = run_forward(problem, q, k, v)
    used = PLAIN.backward(q.dtype, q.shape[-1], k.shape[-2])
    other = used.query or used.key_value
    config = {
        "query": dataclasses.replace(used, query=tiles or other),
        "key_value": dataclasses.replace(used, key_value=tiles or used.key_value, query=other),
        # The tiles in use may not fit if dq is summed too; dk and dv are the same without it.
        "key_value_dq": used if tiles is None else dataclasses.replace(used, key_value=tiles, query=None),
    }[kernel]
    choices = dataclasses.replace(PLAIN, backward_tiles=config, longest_short_sequence=0)
    plan: Any = backward_plan(problem, *(tensor.stride() for tensor in (q, k, v, do)), choices=choices)
    dq, (dk, dv) = torch.empty_like(q), torch.empty_like(plan.like_dk_dv)
    delta, lse_log2, dq_sum = working_memory(plan, dq)
    plan.delta(o, do, lse, delta, lse_log2, dq_sum)

    def run() -> list[Tensor]:
        if kernel == "query":
            run_chunked(plan.query, (q, k, v, do, lse_log2, delta), dq)
            return [dq]
        run_chunked(plan.key_value, (q, k, v, do, lse_log2, delta, dq_sum), dk, dv)
        return [dk, dv]

    return run


def main() -> None:
    """Sweep the shapes of the command line."""
    arguments = parsed(__doc__, "kernel", KERNELS)
    tables = []
    for shape in arguments.shapes:
        candidates = promising(arguments.kernel, arguments.dtype, shape[-1])
        tables.append(sweep(arguments.kernel, arguments.dtype, shape, candidates).assign(shape=str(shape)))
        print(f"{arguments.kernel} {arguments.dtype} {shape}: {len(candidates)} candidates")
        print(tables[-1].head(10).to_string(index=False))
    if arguments.out:
        pd.concat(tables).to_csv(arguments.out, index=False)


if __name__ == "__main__":
    main()
