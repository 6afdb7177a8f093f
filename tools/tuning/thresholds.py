"""Time whole attention calls, on causal shapes, for each value of one of the thresholds by which they are planned."""

import functools
import itertools
import statistics
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from pipeline.attention.triton.autograd import planned_by
from pipeline.attention.triton.tiles import IN_USE, PLAIN, Choices, Chunking
from pipeline.instruments.sampling.interleaving import Work, interleave
from pipeline.instruments.sampling.kernel_timing import kernel_sampler
from pipeline.instruments.sampling.step_timing import StopRule
from tools.tuning.command_line import DTYPES, parsed
from tools.tuning.sweep import largest_deviation

PASSES = ("forward", "forward_backward")
RULE = StopRule(min_samples=5, max_samples=30, rel_error=0.005, budget_s=0.1)
WARMUP_ROUNDS = 2  # in which the sampler learns how long queueing a call takes; kernels are compiled before
NEVER = Chunking(programs_per_sm=0, min_length=1, shortest=0)


def _chunkings(in_use: Chunking) -> tuple[Chunking, ...]:
    tried = itertools.product((2, 4, 8), (128, 256, 512))
    others = (replace(in_use, programs_per_sm=programs, min_length=length) for programs, length in tried)
    return (NEVER, *others)


# Fields of `Choices`, and the values worth trying.
THRESHOLDS: dict[str, tuple[Any, ...]] = {
    "forward_chunks": _chunkings(IN_USE.forward_chunks),
    "forward_chunks_fp32": _chunkings(IN_USE.forward_chunks_fp32),
    "backward_chunks": _chunkings(IN_USE.backward_chunks),
    "backward_chunks_fp32": _chunkings(IN_USE.backward_chunks_fp32),
    "longest_short_sequence": (0, 128, 256, 512, 1024, 2048),
    "longest_short_sequence_fp32": (0, 128, 256, 512, 1024),
    "short_programs_per_sm_fp32": (0, 1, 2, 4, 8, 16),
    "min_length_for_tma": (1, 256, 512, 1024, 2048),
    "few_keys": (0, 256, 512, 1024, 2048),
    "one_tile": (0, 128),
    "few_chunks": (0, 4, 8, 16, 32),
    "many_keys": (2048, 4096, 8192, 16384, 32768, 65536),
    "long_sequence": (2048, 4096, 8192, 16384, 32768, 65536),
}


def sweep(name: str, dtype: str, shape: tuple[int, int, int, int]) -> pd.DataFrame:
    """Time a causal shape (batch, heads, seq_len, head_dim) with each value of a threshold; return one row each.

    Columns: value, is_in_use; for each pass the median device time in ms and its ratio to the peer's, which is timed
    in turn with them; rel_error: the `largest_deviation` of output and gradients from the peer's. The peer is SDPA's
    flash kernel, for fp32 its memory-efficient one.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    generator = torch.Generator(device).manual_seed(0)
    *qkv, do = (torch.randn(shape, generator=generator, device=device).to(DTYPES[dtype]) for _ in range(4))
    for tensor in qkv:
        tensor.requires_grad_()
    values = THRESHOLDS[name]
    attentions = [functools.partial(_causal, planned_by(choices_with(name, value))) for value in values]
    ours = [_works(attend, nullcontext, qkv, do) for attend in attentions]
    backend = SDPBackend.EFFICIENT_ATTENTION if dtype == "fp32" else SDPBackend.FLASH_ATTENTION
    sdpa = functools.partial(scaled_dot_product_attention, is_causal=True)
    peer = _works(sdpa, functools.partial(sdpa_kernel, backend), qkv, do)
    expected = _results(peer)
    deviations = [largest_deviation(_results(works), expected) for works in ours]
    peer_ms, *ours_ms = _median_ms([peer, *ours], device)
    in_use = getattr(IN_USE, name)
    return pd.DataFrame(
        {"value": _text(value), "is_in_use": value == in_use}
        | {f"{part}_ms": found_ms[part] for part in PASSES}
        | {f"{part}_over_peer": found_ms[part] / peer_ms[part] for part in PASSES}
        | {"rel_error": deviation}
        for value, found_ms, deviation in zip(values, ours_ms, deviations, strict=True)
    )


def choices_with(name: str, value: Any) -> Choices:
    """Return the choices in use for the plain kernels, with this threshold replaced."""
    return replace(PLAIN, **{name: value})


def over_all_shapes(table: pd.DataFrame) -> pd.DataFrame:
    """Return, for each value, the geometric mean over shapes of its ratios to the peer."""
    ratios = [f"{part}_over_peer" for part in PASSES]
    return table.groupby(["value", "is_in_use"], sort=False)[ratios].agg(statistics.geometric_mean).reset_index()


def with_marks(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table for printing, with marks at the value in use and at the lowest ratio of each column."""
    shown = table.assign(value=table["value"].where(~table["is_in_use"], table["value"] + " (in use)"))
    for column in (f"{part}_over_peer" for part in PASSES):
        texts = table[column].map("{:.3f}".format)
        shown[column] = texts.where(table[column] > table[column].min(), texts + " *")
    return shown.drop(columns="is_in_use")


def _causal(function: type[torch.autograd.Function], *qkv: Tensor) -> Tensor:
    return function.apply(*qkv, True)


def _works(
    attend: Callable[..., Tensor], within: Callable[[], AbstractContextManager], qkv: list[Tensor], do: Tensor
) -> dict[str, Work]:
    """Return the passes to time; a backward pass returns the output too."""

    def forward(_nothing: None) -> Tensor:
        return attend(*qkv)

    def forward_backward(_nothing: None) -> tuple[Tensor, ...]:
        output = attend(*qkv)
        return output, *torch.autograd.grad(output, qkv, do)

    return {"forward": Work(forward, within=within), "forward_backward": Work(forward_backward, within=within)}


def _results(works: dict[str, Work]) -> tuple[Tensor, ...]:
    work = works["forward_backward"]
    with work.within():
        results: Any = work.call(work.prepare())
    return results


def _median_ms(of_all: list[dict[str, Work]], device: torch.device) -> list[dict[str, float]]:
    """Time all in turn; return the median time of each pass of each."""
    works = {(index, part): work for index, parts in enumerate(of_all) for part, work in parts.items()}
    taken = interleave(works, kernel_sampler(device), dict.fromkeys(works, RULE), WARMUP_ROUNDS).taken
    medians_ms = {key: statistics.median(next(iter(found.times_ms.values()))) for key, found in taken.items()}
    return [{part: medians_ms[index, part] for part in PASSES} for index in range(len(of_all))]


def _text(value: Any) -> str:
    if value == NEVER:
        return "never"
    return f"{value.programs_per_sm} × {value.min_length}" if isinstance(value, Chunking) else str(value)


def main() -> None:
    """Sweep the shapes of the command line."""
    arguments = parsed(__doc__, "threshold", THRESHOLDS)
    tables = []
    for shape in arguments.shapes:
        tables.append(sweep(arguments.threshold, arguments.dtype, shape).assign(shape=str(shape)))
        print(f"{arguments.threshold} {arguments.dtype} {shape}")
        print(with_marks(tables[-1]).drop(columns="shape").to_string(index=False), flush=True)
    table = pd.concat(tables)
    print(f"{arguments.threshold} {arguments.dtype}, geometric mean over all shapes")
    print(with_marks(over_all_shapes(table)).to_string(index=False))
    if arguments.out:
        table.to_csv(arguments.out, index=False)


if __name__ == "__main__":
    main()
