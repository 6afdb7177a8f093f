"""Time copies of `attention/triton/gluon/steps.py`, each with a change, beside the one in use: what a change is worth.

`python -m tools.tuning.variants 4,16,4096,64 2,32,8192,128 --steps mine.py other.py` prints what the compiler makes of
the backward kernel with each (also without a GPU), then for every shape, full and causal, in bf16: the kernel alone
with a cold L2 cache, all in turn in one process; medians in ms, and over the one in use. `WRONG`: gradients differ from
those in use. `not repeatable`: dk or dv differ from call to call.
"""

import argparse
import importlib.util
import statistics
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from pipeline.attention import flash_attention
from pipeline.attention.triton import backward_plan
from pipeline.attention.triton.gluon import backward, launches, steps
from pipeline.attention.triton.gluon.tiles import BackwardTiles, backward_tiles
from pipeline.attention.triton.kernel_sets import kernels_of
from pipeline.attention.triton.problem import problem_of
from pipeline.attention.triton.running import working_memory
from pipeline.instruments.sampling.interleaving import Work, interleave
from pipeline.instruments.sampling.kernel_timing import kernel_sampler
from pipeline.instruments.sampling.step_timing import StopRule
from tools.tuning.command_line import shape
from tools.tuning.compiled import compile_gluon_for_hopper

RULE = StopRule(min_samples=9, max_samples=30, rel_error=0.003, budget_s=0.3)
WARMUP_ROUNDS = 3
IN_USE = "in use"
MOST_DIFFERENCE = 0.004  # relative, of bf16 gradients whose sums are in another order
REPEATS = 20


def kernel_with(file: Path) -> Any:
    """Return the backward kernel with the steps of a file; raises what importing the file raises."""
    changed = _loaded(file)
    with patch.dict(sys.modules, {steps.__name__: changed}):
        return _loaded(Path(backward.__file__)).hopper_backward_kernel


def _loaded(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"variant_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def compiled(kernel: Any, head_dim: int, is_causal: bool) -> str:
    """Say what the compiler makes of a kernel: spills, and whether its products wait, or race with something."""
    _, constants, options = launches.backward_kernel(_tiles(head_dim), is_causal, 1, head_dim, False)
    report = compile_gluon_for_hopper(kernel, constants, options, "bf16")
    serialised = ", every one waits" if report.is_serialised else ""
    races = f", {report.touched_early} instructions race with one" if report.touched_early else ""
    return f"{report.spill_instructions} spills, {report.wgmma} wgmma{serialised}{races}"


def _tiles(head_dim: int) -> BackwardTiles:
    tiles = backward_tiles(head_dim)
    if not isinstance(tiles, BackwardTiles):
        raise SystemExit(f"head_dim must be one that this kernel serves (33 to 128), got {head_dim}")
    return tiles


def compare(kernels: dict[str, Any], of: tuple[int, ...], is_causal: bool) -> str:
    """Time the kernels in turn at a shape, the first being the one in use; return a line of the table."""
    inputs = [torch.randn(of, device="cuda", dtype=torch.bfloat16) for _ in range(4)]
    runs = {name: _run_of(kernel, inputs, is_causal) for name, kernel in kernels.items()}
    found = {name: _gradients(run) for name, run in runs.items()}
    works = {name: Work(partial(_called, run)) for name, run in runs.items()}
    taken = interleave(works, kernel_sampler(inputs[0].device), dict.fromkeys(works, RULE), WARMUP_ROUNDS).taken
    medians = {name: statistics.median(next(iter(each.times_ms.values()))) for name, each in taken.items()}
    words = [f"{medians[IN_USE]:.4f} ms"]
    for name in list(kernels)[1:]:
        words.append(f"{name} {medians[name] / medians[IN_USE]:.3f}{_complaint(found[name], found[IN_USE])}")
    return f"{','.join(map(str, of))} {'causal' if is_causal else 'full'}: {', '.join(words)}"


def _called(run: Callable[[], list[Tensor]], _nothing: None) -> None:
    run()


def _run_of(kernel: Any, inputs: list[Tensor], is_causal: bool) -> Callable[[], list[Tensor]]:
    """Return a function that launches a kernel once and returns dk, dv and the sums of dq, to which it adds."""
    q, k, v, do = inputs
    problem = problem_of(q, k, v, is_causal)
    with patch.object(launches, "hopper_backward_kernel", kernel):
        backward_plan.backward_plan.cache_clear()
        plan = backward_plan.backward_plan(problem, *(each.stride() for each in inputs))
    if not isinstance(plan, backward_plan.BackwardPlan) or kernels_of(q, k, v, is_causal).backward.name != "gluon":
        raise SystemExit(f"{','.join(map(str, q.shape))} is too little work for this kernel: the plain one serves it")
    o, lse = flash_attention(q, k, v, is_causal, return_lse=True)
    delta, lse_read, dq_sum = working_memory(plan, torch.empty_like(q))
    assert dq_sum is not None
    dk, dv = torch.full((2, *k.shape), float("nan"), dtype=k.dtype, device=q.device)
    plan.delta(o, do, lse, delta, lse_read, dq_sum)

    def run() -> list[Tensor]:
        plan.key_value.compute(q, k, v, do, lse_read, delta, dq_sum, dk, dv)
        return [dk, dv, dq_sum]

    return run


def _gradients(run: Callable[[], list[Tensor]]) -> list[list[Tensor]]:
    """Return dk, dv and dq of the first call, then dk and dv of repeated calls."""
    first = [each.clone() for each in run()]
    return [first, *([each.clone() for each in run()[:2]] for _ in range(REPEATS))]


def _complaint(found: list[list[Tensor]], in_use: list[list[Tensor]]) -> str:
    pairs = [(mine.float(), theirs.float()) for mine, theirs in zip(found[0], in_use[0], strict=True)]
    if not all((mine - theirs).norm() <= MOST_DIFFERENCE * theirs.norm() for mine, theirs in pairs):
        return " WRONG"
    same = all(torch.equal(mine, first) for again in found[1:] for mine, first in zip(again, found[0], strict=False))
    return "" if same else " not repeatable"


def main() -> None:
    """Print what the compiler makes of all variants, then their times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", nargs="+", type=shape, metavar="BATCH,HEADS,SEQ_LEN,HEAD_DIM")
    parser.add_argument("--steps", nargs="+", type=Path, required=True, metavar="FILE.py")
    asked = parser.parse_args()
    missing = [str(file) for file in asked.steps if not file.is_file()]
    if missing:
        parser.error(f"there is no {missing[0]}")
    names = [file.stem for file in asked.steps]
    if len({*names, IN_USE}) <= len(names):
        parser.error(f"files must have different names, got {', '.join(names)}")
    kernels = {IN_USE: backward.hopper_backward_kernel} | {file.stem: kernel_with(file) for file in asked.steps}
    for head_dim in dict.fromkeys(each[-1] for each in asked.shapes):
        for is_causal in (False, True):
            told = [f"{name}: {compiled(kernel, head_dim, is_causal)}" for name, kernel in kernels.items()]
            print(f"head_dim {head_dim} {'causal' if is_causal else 'full'}: {'; '.join(told)}")
    if torch.cuda.is_available():
        for each in asked.shapes:
            print(*(compare(kernels, each, is_causal) for is_causal in (False, True)), sep="\n")


if __name__ == "__main__":
    main()
