"""Print without failing: to a full disk, a closed pipe or a stream that cannot encode the text."""

import io
import os
import sys
from collections.abc import Iterable
from typing import TextIO


def escape_what_streams_cannot_write() -> None:
    """Make stdout and stderr escape characters that their encoding lacks: × becomes \\xd7 under an ASCII locale."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def print_lines(lines: Iterable[str], stream: TextIO) -> None:
    """Print lines if possible: a failed print must cost neither the record nor the exit code."""
    try:
        for line in lines:
            print(line, file=stream)
        stream.flush()
    except OSError:  # a full disk or a closed pipe; Python would flush again at exit, and fail
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
