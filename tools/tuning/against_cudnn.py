"""Time the Triton attention at shapes of real models beside cuDNN's, for fp32 torch's memory-efficient kernel's.

Where FlashAttention-4 is installed, beside that too, its inputs laid out as it wants them.

`python -m tools.tuning.against_cudnn` prints a table: through autograd, forward and forward +
backward, device time with a cold L2 cache, in turn with the peer; medians in ms and the half-width of the middle half
of the samples in percent, and the ratio of medians. Words after it choose among the rows: those that hold all of them.
`--out FILE` writes each row there too, as a line of JSON.
"""

import argparse
import functools
import importlib
import statistics
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from pipeline.attention import flash_attention
from pipeline.attention.triton.kernel_sets import kernels_of
from pipeline.instruments.sampling.interleaving import Work, interleave
from pipeline.instruments.sampling.kernel_timing import kernel_sampler
from pipeline.instruments.sampling.step_timing import StopRule
from tools.tuning.command_line import DTYPES

RULE = StopRule(min_samples=8, max_samples=60, rel_error=0.002, budget_s=0.25)
WARMUP_ROUNDS = 3  # in which kernels are compiled, and the sampler learns how long queueing a call takes
PASSES = ("forward", "both")


class Case(NamedTuple):
    """What is timed: dtype, (batch, heads, sequence, head_dim), mask, and the number of key heads if it is smaller."""

    dtype: str
    shape: tuple[int, int, int, int]
    is_causal: bool
    kv_heads: int | None = None

    def __str__(self) -> str:
        batch, heads, *rest = self.shape
        heads_words = str(heads) if self.kv_heads is None else f"{heads}:{self.kv_heads}"
        return (
            f"{self.dtype} {','.join(map(str, (batch, heads_words, *rest)))} {'causal' if self.is_causal else 'full'}"
        )

    @property
    def kv_shape(self) -> tuple[int, int, int, int]:
        """Return the shape of keys and values."""
        batch, heads, length, head_dim = self.shape
        return batch, self.kv_heads or heads, length, head_dim


CASES = [
    *(
        Case(dtype, shape, is_causal)
        for dtype in ("bf16", "fp16")
        for is_causal in (True, False)
        for shape in ((4, 16, 4096, 128), (2, 32, 8192, 128), (1, 16, 16384, 128))
    ),
    *(
        Case("bf16", shape, is_causal, kv_heads=8)
        for is_causal in (True, False)
        for shape in ((2, 32, 8192, 128), (8, 32, 2048, 128))
    ),
    *(
        Case("bf16", shape, is_causal)
        for is_causal in (True, False)
        for shape in ((16, 12, 1024, 64), (4, 16, 4096, 64), (1, 16, 16384, 64), (8, 25, 512, 64))
    ),
    *(
        Case("bf16", shape, is_causal)
        for is_causal in (True, False)
        for shape in ((2, 16, 4096, 256), (2, 32, 2048, 80), (2, 32, 2048, 96))
    ),
    *(
        Case("fp32", (batch, heads, length, head_dim), is_causal)
        for is_causal in (True, False)
        for batch, heads, length in ((4, 12, 1024), (1, 16, 4096))
        for head_dim in (64, 128)
    ),
]


def compare(case: Case, attend: Callable[..., Tensor] = flash_attention) -> dict[str, object]:
    """Time a case, alternating between ours and the peers; return a row of the table."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    generator = torch.Generator(device).manual_seed(0)
    shapes = (case.shape, case.kv_shape, case.kv_shape, case.shape)
    *qkv, do = (torch.randn(shape, generator=generator, device=device).to(DTYPES[case.dtype]) for shape in shapes)
    arguments: dict[str, Any] = {"is_causal": case.is_causal, "enable_gqa": case.kv_heads is not None}
    kernels = kernels_of(qkv[0], qkv[1], qkv[2], **arguments)
    for tensor in qkv:
        tensor.requires_grad_()
    backend = SDPBackend.EFFICIENT_ATTENTION if case.dtype == "fp32" else SDPBackend.CUDNN_ATTENTION
    within = functools.partial(sdpa_kernel, backend) if device.type == "cuda" else nullcontext
    peer = functools.partial(scaled_dot_product_attention, **arguments)
    ours = functools.partial(attend, **arguments)
    works = {
        **{("ours", part): work for part, work in _works(ours, nullcontext, qkv, do).items()},
        **{("peer", part): work for part, work in _works(peer, within, qkv, do).items()},
    }
    fa4 = flash_attention_4() if case.dtype != "fp32" else None
    if fa4 is not None:
        *laid_out, laid_out_do = (x.detach().transpose(1, 2).contiguous() for x in (*qkv, do))
        for tensor in laid_out:
            tensor.requires_grad_()
        attend_fa4 = functools.partial(fa4, causal=case.is_causal)
        works |= {("fa4", part): work for part, work in _works(attend_fa4, nullcontext, laid_out, laid_out_do).items()}
    taken = interleave(works, kernel_sampler(device), dict.fromkeys(works, RULE), WARMUP_ROUNDS).taken
    times_ms = {key: next(iter(found.times_ms.values())) for key, found in taken.items()}
    row: dict[str, object] = {"case": str(case), "kernels": f"{kernels.forward.name}, {kernels.backward.name}"}
    for part in PASSES:
        medians = {whose: statistics.median(times_ms[whose, part]) for whose, of in works if of == part}
        for whose, median_ms in medians.items():
            row[f"{part} {whose}"] = f"{median_ms:.4f} ±{_spread_pct(times_ms[whose, part]):.1f}%"
        row[f"{part} ratio"] = medians["ours"] / medians["peer"]
        if "fa4" in medians:
            row[f"{part} fa4 ratio"] = medians["ours"] / medians["fa4"]
    return row


def flash_attention_4() -> Callable[..., Tensor] | None:
    """Return FlashAttention-4's function of (batch, length, heads, head_dim), None if it is not installed."""
    try:
        module = importlib.import_module("flash_attn.cute.interface")
    except ImportError:
        return None

    def attend(*inputs: Tensor, causal: bool) -> Tensor:
        found = module.flash_attn_func(*inputs, causal=causal)
        return found[0] if isinstance(found, tuple) else found

    return attend


def _spread_pct(samples_ms: list[float]) -> float:
    low, median, high = np.quantile(samples_ms, (0.25, 0.5, 0.75))
    return 50 * (high - low) / median


def _works(
    attend: Callable[..., Tensor], within: Callable[[], AbstractContextManager], qkv: list[Tensor], do: Tensor
) -> dict[str, Work]:
    def forward(_nothing: None) -> Tensor:
        return attend(*qkv)

    def both(_nothing: None) -> tuple[Tensor, ...]:
        output = attend(*qkv)
        return output, *torch.autograd.grad(output, qkv, do)

    return {"forward": Work(forward, within=within), "both": Work(both, within=within)}


def chosen(words: Iterable[str], cases: Iterable[Case] = CASES) -> list[Case]:
    """Return the cases whose text holds all the words."""
    return [case for case in cases if all(word in str(case) for word in words)]


def main() -> None:
    """Print the table of the cases that the command line chooses, then geometric means of the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", metavar="WORD")
    parser.add_argument("--out", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    cases = chosen(arguments.words)
    if not cases:
        parser.error(f"no case holds all of {arguments.words}; there are:\n" + "\n".join(map(str, CASES)))
    table = pd.DataFrame([compare(case) for case in cases])
    print(table.to_string(index=False, float_format="{:.3f}".format))
    for part in PASSES:
        print(f"{part}, geometric mean of the ratios: {statistics.geometric_mean(table[f'{part} ratio']):.3f}")
    if arguments.out:
        table.to_json(arguments.out, orient="records", lines=True, force_ascii=False)


if __name__ == "__main__":
    main()
