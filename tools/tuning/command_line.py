"""The command line of both sweeps."""

import argparse
from collections.abc import Iterable
from pathlib import Path

import torch

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def parsed(description: str | None, what: str, choices: Iterable[str]) -> argparse.Namespace:
    """Parse the command line of a sweep: what is swept, the dtype, the shapes, and where to write the whole table."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(what, choices=list(choices))
    parser.add_argument("dtype", choices=list(DTYPES))
    parser.add_argument("shapes", nargs="+", type=shape, metavar="BATCH,HEADS,SEQ_LEN,HEAD_DIM")
    parser.add_argument("--out", type=Path, metavar="TABLE.csv")
    return parser.parse_args()


def shape(text: str) -> tuple[int, ...]:
    """Parse a shape; raises ArgumentTypeError if it is not one."""
    words = text.split(",")
    if len(words) != 4 or not all(word.isdecimal() and int(word) for word in words):
        raise argparse.ArgumentTypeError(f"must be four whole numbers from 1, as in 1,16,16384,64, got {text!r}")
    return tuple(map(int, words))
