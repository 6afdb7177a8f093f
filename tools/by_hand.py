"""Time what the report advises without the pipeline: a plain transformer's training step, with each change by itself.

The model, its optimizer, the loop and the clock are written here once more in plain PyTorch, so that the report's
speed-ups can be had by a second, independent path. Only what is our own comes from the package `pipeline`: attention in
the changes with `flash`; model, batch and step in those with `blocks`. They need it installed, or PYTHONPATH=src.

    python tools/by_hand.py --size xl --beside reports/h100 --out by_hand.json

A change is `eager`, or words joined by +: fused (AdamW in one kernel), flash, sdpa, blocks (ours), compile, graph (the
step as one CUDA graph), bf16_weights (with gradients and moments), checkpointing, fp32, tf32. With @2048
it is timed at that context. Each runs in a process of its own, one after another, the eager step first and last.
Speed-up: the eager step's median time, the mean of both, over the change's.
"""

import argparse
import contextlib
import csv
import gc
import json
import math
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

Record = dict[str, Any]
Step = Callable[[], Tensor]
SIZES = {
    "tiny": {"d_model": 64, "d_ff": 256, "num_layers": 2, "num_heads": 2},
    "medium": {"d_model": 1024, "d_ff": 4096, "num_layers": 24, "num_heads": 16},
    "large": {"d_model": 1280, "d_ff": 5120, "num_layers": 36, "num_heads": 20},
    "xl": {"d_model": 1600, "d_ff": 6400, "num_layers": 48, "num_heads": 25},
    "2.7B": {"d_model": 2560, "d_ff": 10240, "num_layers": 32, "num_heads": 32},
}
WORDS = ("fused", "flash", "sdpa", "blocks", "compile", "graph", "bf16_weights", "checkpointing", "fp32", "tf32")
CHANGES = (
    *("eager", "fused", "sdpa", "flash", "compile", "fused+sdpa", "fused+sdpa+compile", "fused+sdpa+compile+graph"),
    *("bf16_weights", "fused+sdpa+compile+graph+bf16_weights", "blocks", "fused+flash+blocks", "checkpointing"),
    *("fp32", "tf32"),
)
ONE_OF = ({"flash", "sdpa"}, {"fp32", "tf32", "bf16_weights"})
WITH_BLOCKS = {"blocks", "fused", "flash", "sdpa"}
NEED_CUDA = ("flash", "graph", "tf32")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
VOCABULARY, LEARNING_RATE, WARM_UP_STEPS, TIMED_STEPS = 10_000, 1e-4, 5, 10


def eager(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend to earlier positions, with the matrix of all scores in memory; the softmax is in fp32, as in autocast."""
    scores = (q / math.sqrt(q.shape[-1])) @ k.transpose(-2, -1)
    scores += torch.full(scores.shape[-2:], -math.inf, dtype=scores.dtype, device=scores.device).triu_(1)
    return torch.softmax(scores, dim=-1, dtype=torch.float32).to(v.dtype) @ v


def sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend to earlier positions by PyTorch's own kernels."""
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def flash(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend to earlier positions by the pipeline's Triton kernels."""
    from pipeline.attention import FlashAttentionTriton

    return FlashAttentionTriton.apply(q, k, v, True)


ATTENTION = {"eager": eager, "sdpa": sdpa, "flash": flash}


def attention_of(words: Sequence[str]) -> str:
    """Name the attention of a change."""
    return next((name for name in ("flash", "sdpa") if name in words), "eager")


def linear(in_features: int, out_features: int) -> nn.Linear:
    """Make a matrix without bias, of Glorot's variance."""
    made = nn.Linear(in_features, out_features, bias=False)
    nn.init.xavier_normal_(made.weight)
    return made


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each pair of a head's two halves by its position's angle, in fp32."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1).to(x.dtype)


class Block(nn.Module):
    """Add attention, then SwiGLU, each of the normed residual stream."""

    def __init__(self, d_model: int, d_ff: int, num_heads: int, attend: Callable[[Tensor, Tensor, Tensor], Tensor]):
        super().__init__()
        self.head_dim, self.attend = d_model // num_heads, attend
        self.first_norm = nn.RMSNorm(d_model, eps=1e-5)
        self.q, self.k, self.v, self.out = (linear(d_model, d_model) for _ in range(4))
        self.second_norm = nn.RMSNorm(d_model, eps=1e-5)
        self.gate, self.up, self.down = linear(d_model, d_ff), linear(d_model, d_ff), linear(d_ff, d_model)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Map (batch, context, d_model) to the same shape."""
        normed = self.first_norm(x)
        q, k, v = (each(normed).unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for each in (self.q, self.k, self.v))
        heads = self.attend(rotate(q, cos, sin), rotate(k, cos, sin), v)
        x = x + self.out(heads.transpose(1, 2).flatten(2))
        normed = self.second_norm(x)
        return x + self.down(functional.silu(self.gate(normed)) * self.up(normed))


class Transformer(nn.Module):
    """Map tokens (batch, context) to the logits of the next ones."""

    def __init__(self, words: Sequence[str], context: int, d_model: int, d_ff: int, num_layers: int, num_heads: int):
        super().__init__()
        attend = ATTENTION[attention_of(words)]
        self.has_checkpoints = "checkpointing" in words
        self.embedding = nn.Embedding(VOCABULARY, d_model)
        self.blocks = nn.ModuleList(Block(d_model, d_ff, num_heads, attend) for _ in range(num_layers))
        self.norm, self.head = nn.RMSNorm(d_model, eps=1e-5), linear(d_model, VOCABULARY)
        head_dim = d_model // num_heads
        turns = 10_000.0 ** (-torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
        angles = torch.outer(torch.arange(context, dtype=torch.float32), turns)
        self.cos, self.sin = angles.cos(), angles.sin()

    def forward(self, tokens: Tensor) -> Tensor:
        """Compute the logits, (batch, context, vocabulary)."""
        x = self.embedding(tokens)
        for block in self.blocks:
            if self.has_checkpoints:
                x = checkpoint(block, x, self.cos, self.sin, use_reentrant=False, preserve_rng_state=False)
            else:
                x = block(x, self.cos, self.sin)
        return self.head(self.norm(x))


def built(words: Sequence[str], size: str, context: int, batch: int) -> tuple[Step, torch.optim.Optimizer]:
    """Make model, optimizer and batch; return what runs a whole training step and returns its loss."""
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high" if "tf32" in words else "highest")
    if "blocks" in words:
        return built_by_pipeline(words, size, context, batch)
    dtype = torch.bfloat16 if "bf16_weights" in words else torch.float32
    with torch.device(DEVICE):
        model = Transformer(words, context, **SIZES[size])
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    if "compile" in words:
        for block in model.blocks:
            block.compile()
    is_fused = True if "fused" in words else None
    optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE, fused=is_fused, capturable="graph" in words)
    sequences = torch.randint(VOCABULARY, (batch, context + 1), generator=torch.Generator().manual_seed(0)).to(DEVICE)
    tokens, targets = sequences[:, :-1].contiguous(), sequences[:, 1:].flatten()
    has_autocast = not {"fp32", "tf32"} & {*words}

    def step() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        # A graph must not read weights that were cast outside it.
        with torch.autocast(DEVICE, torch.bfloat16, enabled=has_autocast, cache_enabled="graph" not in words):
            loss = functional.cross_entropy(model(tokens).flatten(0, 1).float(), targets)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step, optimizer


def built_by_pipeline(words: Sequence[str], size: str, context: int, batch: int) -> tuple[Step, torch.optim.Optimizer]:
    """Return the pipeline's own step with its fused blocks, of the same sizes."""
    from pipeline.formulas.sizes import ModelSize
    from pipeline.model.fused.step import fused_step
    from pipeline.model.step import build_training_step

    plain = build_training_step(
        ModelSize(**SIZES[size]),
        vocab_size=VOCABULARY,
        context_length=context,
        batch_size=batch,
        precision="bf16",
        device=DEVICE,
        fused_optimizer="fused" in words,
    )
    made = fused_step(plain, attention_of(words), torch.bfloat16)
    for group in made.optimizer.param_groups:
        group["lr"] = LEARNING_RATE
    return made.run, made.optimizer


def captured(step: Step, optimizer: torch.optim.Optimizer) -> Step:
    """Capture a step that has run before as one CUDA graph; return what replays it."""
    optimizer.zero_grad(set_to_none=True)
    gc.collect()
    torch.cuda.empty_cache()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()

    def replay() -> Tensor:
        graph.replay()
        return loss

    return replay


def measured(change: str, size: str, context: int, batch: int) -> Record:
    """Warm a step up and time it; the peak of memory is that of the timed steps, of a graph that of its capture."""
    words, has_gpu = change.split("+"), DEVICE == "cuda"
    step, optimizer = built(words, size, context, batch)
    if has_gpu:
        torch.cuda.synchronize()  # the model and its batch are there, whichever stream goes on
    # PyTorch's rule: what is to be captured warms up on another stream.
    with torch.cuda.stream(torch.cuda.Stream()) if "graph" in words else contextlib.nullcontext():
        losses = [float(step()) for _ in range(WARM_UP_STEPS)]
    if has_gpu:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    if "graph" in words:
        step = captured(step, optimizer)
        losses += [float(step()) for _ in range(WARM_UP_STEPS)]
    samples_ms = [time_ms(step) for _ in range(TIMED_STEPS)]
    found = {"status": "ok", "samples_ms": samples_ms, "median_ms": statistics.median(samples_ms)}
    if has_gpu:
        found["peak_bytes"] = torch.cuda.max_memory_allocated()
    return {**found, "first_loss": losses[0], "loss_after_timing": float(step())}


def time_ms(step: Step) -> float:
    """Time a step by the host's clock, with the GPU idle before and after it."""
    synchronize = torch.cuda.synchronize if DEVICE == "cuda" else lambda: None
    synchronize()
    start_s = time.perf_counter()
    step()
    synchronize()
    return 1e3 * (time.perf_counter() - start_s)


def outcome(change: str, size: str, context: int, batch: int) -> Record:
    """Measure a change in this process; what keeps it from running becomes its status and reason."""
    lacking = [word for word in change.split("+") if word in NEED_CUDA and DEVICE != "cuda"]
    if lacking:
        return {"status": "skipped", "reason": f"{' and '.join(lacking)}: needs a CUDA GPU"}
    try:
        return measured(change, size, context, batch)
    except Exception as error:
        traceback.print_exc()
        cause: BaseException | None = error
        while cause is not None:  # a capture that fails raises an error of its own
            if isinstance(cause, torch.OutOfMemoryError):
                return {"status": "oom", "reason": "out of memory"}
            cause = cause.__context__
        return {"status": "failed", "reason": " ".join(f"{type(error).__name__}: {error}".split())[:200]}


def in_a_process(change: str, size: str, context: int, batch: int) -> Record:
    """Measure a change in a process of its own, whose last line of output is its record."""
    options = f"--size {size} --turn {change} --context {context} --batch {batch}".split()
    words = [sys.executable, str(Path(__file__).resolve()), *options]
    ended = subprocess.run(words, stdout=subprocess.PIPE, encoding="utf-8", check=False)
    try:
        found = json.loads(ended.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        found = {"status": "failed", "reason": f"its process ended with exit code {ended.returncode} and no record"}
    return {"change": change, "context": context, **found}


def eager_ms(records: Sequence[Record], context: int) -> float:
    """Return the mean of the eager step's medians at a context; NaN where it has none."""
    rows = [row for row in records if (row["change"], row["context"], row["status"]) == ("eager", context, "ok")]
    return statistics.fmean(row["median_ms"] for row in rows) if rows else math.nan


def written(value: float, digits: int) -> str:
    """Write a number; a dash where there is none."""
    return "–" if math.isnan(value) else f"{value:,.{digits}f}"


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """Print rows, the first of which is the head, with columns of equal width."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(f"{cell:{'<' if i == 0 else '>'}{widths[i]}}" for i, cell in enumerate(row)).rstrip())


def print_times(records: Sequence[Record]) -> None:
    """Print each change's times, memory, and speed-up over the eager step; then why those without have none."""
    rows = [["change", "median ms", "min", "max", "peak GB", "speed-up over eager", "first loss"]]
    for row in records:
        median_ms, samples_ms = row.get("median_ms", math.nan), row.get("samples_ms", [math.nan])
        times_ms = [written(each, 2) for each in (median_ms, min(samples_ms), max(samples_ms))]
        speed_up = eager_ms(records, row["context"]) / median_ms
        others = [(row.get("peak_bytes", math.nan) / 1e9, 1), (speed_up, 3), (row.get("first_loss", math.nan), 4)]
        rows.append([f"{row['change']} @{row['context']}", *times_ms, *(written(*each) for each in others)])
    print_table(rows)
    for row in records:
        if row["status"] != "ok":
            print(f"{row['change']} @{row['context']}: {row['status']}: {row['reason']}")
    if any("blocks" in row["change"] for row in records):
        print("blocks: the pipeline's own model, batch and step; all others are written in this script")
    medians_ms = {(row["change"], row["context"]): row["median_ms"] for row in records if row["status"] == "ok"}
    for (change, context), median_ms in medians_ms.items():
        if change == "flash" and ("checkpointing", context) in medians_ms:
            gain = medians_ms["checkpointing", context] / median_ms
            print(f"flash over eager with checkpointing, at context {context}: {gain:.3f}")


def published_ms(path: Path, context: int, batch: int) -> dict[str, float]:
    """Read the pipeline's medians in bf16 by lever; repeats merge into their median, both eager steps into a mean."""
    by_lever: dict[str, list[float]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            asked = {"context_length": str(context), "setting_batch_size": str(batch), "precision": "bf16"}
            if row.items() >= asked.items() and row.get("median_ms"):
                by_lever.setdefault(row["levers"], []).append(float(row["median_ms"]))
    medians_ms = {levers: statistics.median(values_ms) for levers, values_ms in by_lever.items()}
    both_ms = [medians_ms[name] for name in ("eager", "eager_again") if name in medians_ms]
    return medians_ms | ({"eager": statistics.fmean(both_ms)} if both_ms else {})


def print_beside(records: Sequence[Record], path: Path, context: int, batch: int) -> None:
    """Print the by-hand medians and speed-ups beside those that the pipeline published."""
    theirs_ms = published_ms(path, context, batch)
    ours_ms = {row["change"]: row.get("median_ms", math.nan) for row in records if row["context"] == context}
    ours_ms["eager"] = eager_ms(records, context)
    rows = [["change", "by hand ms", "speed-up", "pipeline ms", "speed-up", "speed-up by hand / pipeline"]]
    for change in [name for name in theirs_ms if name in ours_ms]:
        ours, theirs = ours_ms["eager"] / ours_ms[change], theirs_ms.get("eager", math.nan) / theirs_ms[change]
        numbers = [(ours_ms[change], 2), (ours, 3), (theirs_ms[change], 2), (theirs, 3), (ours / theirs, 3)]
        rows.append([change, *(written(*each) for each in numbers)])
    print(f"\nBeside {path}, context {context}, batch {batch}:")
    print_table(rows) if len(rows) > 1 else print("it has none of these changes")


class Parser(argparse.ArgumentParser):
    """A parser that says in one line what is wrong."""

    def error(self, message: str) -> NoReturn:
        """Exit with code 2."""
        self.exit(2, f"{self.prog}: {message}\n")


def whole_number(text: str) -> int:
    """Read a whole number from 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1, got {text!r}")
    return int(text)


def asked_change(text: str) -> tuple[str, int | None]:
    """Read a change, and its context where it names one."""
    change, at, context = text.partition("@")
    words = change.split("+")
    known = change == "eager" or ({*words} <= {*WORDS} and len({*words}) == len(words))
    if not known:
        raise argparse.ArgumentTypeError(f"must be eager or, joined by +, some of {', '.join(WORDS)}, got {change!r}")
    if any(len(group & {*words}) > 1 for group in ONE_OF) or ("blocks" in words and not {*words} <= WITH_BLOCKS):
        raise argparse.ArgumentTypeError(f"these exclude each other: {change!r}")
    return change, whole_number(context) if at else None


def parsed(words: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=list(SIZES), required=True)
    parser.add_argument("--changes", nargs="+", type=asked_change, metavar="CHANGE[@CONTEXT]", help="default: all")
    parser.add_argument("--context", type=whole_number, default=1024)
    parser.add_argument("--batch", type=whole_number, default=4)
    parser.add_argument("--beside", type=Path, metavar="FOLDER", help="a published snapshot, as reports/h100")
    parser.add_argument("--out", type=Path, metavar="FILE.json")
    parser.add_argument("--turn", type=asked_change, help=argparse.SUPPRESS)  # measure this alone, in this process
    found = parser.parse_args(words)
    if found.beside is not None:
        found.beside = found.beside / "tables" / "levers" / f"{found.size}.csv"
        if not found.beside.is_file():
            parser.error(f"argument --beside: there is no {found.beside}")
    if found.out is not None and not found.out.absolute().parent.is_dir():
        parser.error(f"argument --out: there is no folder {found.out.parent}")
    return found


def turns(asked: Sequence[tuple[str, int | None]] | None, context: int) -> list[tuple[str, int]]:
    """Return what is measured in turn: the eager step first and last, if it is asked for."""
    if asked is None:
        asked = [*((change, None) for change in CHANGES), ("checkpointing", 2 * context), ("flash", 2 * context)]
    found = list(dict.fromkeys((change, at or context) for change, at in asked))
    eager_step = ("eager", context)
    others = [turn for turn in found if turn != eager_step]
    return [eager_step, *others, eager_step] if eager_step in found else others


def main(words: Sequence[str] | None = None) -> None:
    """Measure every change in turn and print the tables."""
    asked = parsed(words)
    if asked.turn is not None:
        device = torch.cuda.get_device_name() if DEVICE == "cuda" else "CPU"
        print(json.dumps({**outcome(asked.turn[0], asked.size, asked.context, asked.batch), "device": device}))
        return
    records: list[Record] = []
    for change, context in turns(asked.changes, asked.context):
        print(f"{change} @{context} ...", file=sys.stderr, flush=True)
        records.append(in_a_process(change, asked.size, context, asked.batch))
        if asked.out is not None:  # after each, for the next may be the last
            setting = {"torch": torch.__version__, "size": asked.size, "batch": asked.batch}
            gpu = next((row["device"] for row in records if "device" in row), None)
            asked.out.write_text(json.dumps({**setting, "gpu": gpu, "turns": records}, indent=1), encoding="utf-8")
    print(f"{asked.size}, batch {asked.batch}, torch {torch.__version__}, {records[0].get('device', 'unknown device')}")
    print_times(records)
    if asked.beside is not None:
        print_beside(records, asked.beside, asked.context, asked.batch)


if __name__ == "__main__":
    main()
