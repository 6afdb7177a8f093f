"""Time what the report advises without the pipeline: a plain transformer's training step, with each change by itself.

The model, its optimizer, the loop and the clock are written here once more in plain PyTorch, so that the report's
speed-ups can be had by a second, independent path. Only what is our own comes from the package `pipeline`: attention in
the changes with `flash`; model, batch and step in those with `blocks`. They need it installed, or PYTHONPATH=src.

    python -m tools.by_hand --size xl --beside reports/h100 --out by_hand.json

A change is `eager`, or words joined by +: fused (AdamW in one kernel), flash, sdpa, blocks (ours), compile, graph (the
step as one CUDA graph), bf16_weights (with gradients and moments), checkpointing, fp32, tf32. With @2048 it is timed at
that context. Each runs in a process of its own, one after another, the eager step first and last.
Speed-up: the eager step's median time, the mean of both, over the change's.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import torch

from tools.by_hand import tables
from tools.by_hand.model import SIZES
from tools.by_hand.step import DEVICE, Record, outcome

WORDS = ("fused", "flash", "sdpa", "blocks", "compile", "graph", "bf16_weights", "checkpointing", "fp32", "tf32")
CHANGES = (
    *("eager", "fused", "sdpa", "flash", "compile", "fused+sdpa", "fused+sdpa+compile", "fused+sdpa+compile+graph"),
    *("bf16_weights", "fused+sdpa+compile+graph+bf16_weights", "blocks", "fused+flash+blocks", "checkpointing"),
    *("fp32", "tf32"),
)
ONE_OF = ({"flash", "sdpa"}, {"fp32", "tf32", "bf16_weights"})
WITH_BLOCKS = {"blocks", "fused", "flash", "sdpa"}


def in_a_process(change: str, size: str, context: int, batch: int) -> Record:
    """Measure a change in a separate process, whose last line of output is its record."""
    options = f"--size {size} --turn {change} --context {context} --batch {batch}".split()
    words = [sys.executable, "-m", "tools.by_hand", *options]
    ended = subprocess.run(words, stdout=subprocess.PIPE, encoding="utf-8", check=False, cwd=Path(__file__).parents[2])
    try:
        found = json.loads(ended.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        found = {"status": "failed", "reason": f"its process ended with exit code {ended.returncode} and no record"}
    return {"change": change, "context": context, **found}


class Parser(argparse.ArgumentParser):
    """A parser that reports an error in one line."""

    def error(self, message: str) -> NoReturn:
        """Exit with code 2."""
        self.exit(2, f"{self.prog}: {message}\n")


def whole_number(text: str) -> int:
    """Parse a whole number that is at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1, got {text!r}")
    return int(text)


def asked_change(text: str) -> tuple[str, int | None]:
    """Parse CHANGE[@CONTEXT]; the context is None if it is left out."""
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
    parser = Parser(
        prog="python -m tools.by_hand", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
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
    """Return the changes to measure and their contexts, the eager step first and last if it is asked for."""
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
        if asked.out is not None:  # after each, in case a later one ends this process
            setting = {"torch": torch.__version__, "size": asked.size, "batch": asked.batch}
            gpu = next((row["device"] for row in records if "device" in row), None)
            asked.out.write_text(json.dumps({**setting, "gpu": gpu, "turns": records}, indent=1), encoding="utf-8")
    print(f"{asked.size}, batch {asked.batch}, torch {torch.__version__}, {records[0].get('device', 'unknown device')}")
    print_tables(records, asked)


def print_tables(records: Sequence[Record], asked: argparse.Namespace) -> None:
    """Print all times, the reasons for those missing, and the comparisons asked for."""
    print(tables.written(tables.times(records)))
    for row in records:
        if row["status"] != "ok":
            print(f"{row['change']} @{row['context']}: {row['status']}: {row['reason']}")
    if any("blocks" in row["change"] for row in records):
        print("blocks: the pipeline's own model, batch and step; all others are written down here")
    if len(instead := tables.instead_of_checkpoints(records)):
        print(f"\nFlash attention in place of checkpoints:\n{tables.written(instead)}")
    if asked.beside is not None:
        print(f"\nBeside {asked.beside}, context {asked.context}, batch {asked.batch}:")
        print(tables.written(tables.beside(records, asked.beside, asked.context, asked.batch)))


if __name__ == "__main__":
    main()
