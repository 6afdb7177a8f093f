"""Attention of the user's own in a flash cell: checked alone, then timed in turn with the others.

What the small problems of the check do not show, the errors of the cell's own problem may: one far off is wrong too.
So is one that is far off when it is called again after the timing: it has remembered results, or spoilt its buffers.

Where heads of queries share keys and values it gets fewer heads of keys if it is right with these, else copies, which
count in its time as they do in a model; its rows say so.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import NamedTuple

import torch

from pipeline.instruments.sampling.stopwatch import Stopwatch
from pipeline.parallel.processes.starting import RankContext
from pipeline.stages.flash.cell import PHASES, Cell, Settings
from pipeline.stages.flash.implementations import Implementation
from pipeline.stages.flash.together import TORCH_DTYPES, Measured, Row, measure_together
from pipeline.subjects.attention_check import QUANTITIES, TF32_EPS, attention_of, check_attention
from pipeline.subjects.checking import Processes, Verdict
from pipeline.subjects.measuring import measure_with
from pipeline.subjects.naming import Subject
from pipeline.subjects.turns import Turns


class _Limit(NamedTuple):
    """What an error may be: so many times the largest of PyTorch's own in the cell, or so many units of rounding."""

    words: str
    times: float
    units: float


# On an H200 right implementations had at most 1.01 (rel) and 1.64 (max) times the errors of PyTorch's own, in fp32 more
# where they round as TF32 does. One row of 1,024 left out is 3.5 and 7 times.
LIMITS = {"rel": _Limit("a relative error", 3, 2), "max": _Limit("an error somewhere", 4, 16)}
FINE_EPS = 2.0**-20  # of fp32 products that are summed in another order
AT_FIRST = (
    "right at first, but not when it is called after the timing with other numbers in the same tensors, as of one that "
    "remembers results or forgets to clear a buffer: "
)


def measure_beside(subjects: Sequence[Subject], cell: Cell, settings: Settings) -> list[Row]:
    """Return the rows of a cell with the user's own implementations; one that fails costs its own rows."""
    keys = [{"phase": phase} for phase in PHASES]
    device_type = "cuda" if torch.cuda.is_available() else "cpu"
    checked, measured = (
        Processes(1, "gloo", device_type, limit_s) for limit_s in (settings.check_timeout_s, settings.timeout_s)
    )
    again: dict[str, Row] = {}

    def measure(left: Mapping[Subject, Verdict], mark: Path) -> list[Row]:
        ways = [(subject, found.way) for subject, found in left.items()]
        found = measured.run(_measure, cell, settings, ways, mark)
        again.update(found.again)
        return found.rows

    def judge(subject: Subject, rows: list[Row]) -> Verdict | None:
        first = [row for row in rows if row["impl"] == subject.name]
        if said := _far_off(first, cell, rows, device_type):
            return Verdict("wrong", f"{said}; at the short lengths of the check it was right")
        if said := _far_off([again.get(subject.name, {})], cell, rows, device_type):
            return Verdict("wrong", AT_FIRST + said)
        return None

    of_cell = cell.head_dim, cell.is_causal, cell.seq_len, cell.query_heads_per_kv_head
    check = check_attention, TORCH_DTYPES[cell.dtype], *of_cell
    return measure_with(subjects, check, checked, measure, keys, judge)


def _measure(
    _context: RankContext, cell: Cell, settings: Settings, own: Sequence[tuple[Subject, str]], mark: Path
) -> Measured:
    turns, built = Turns([subject for subject, _way in own], mark), {}
    for subject, way in own:
        with turns.of(subject.name):
            attend = attention_of(subject, way, cell.is_causal, cell.query_heads_per_kv_head)
        built[subject.name] = Implementation(attend, within=partial(turns.of, subject.name))
    return measure_together(cell, settings, Stopwatch(), built)


def _far_off(errors: Sequence[Row], cell: Cell, rows: Sequence[Row], device_type: str) -> str | None:
    """Say which of the errors at the cell's own problem is far above those in its rows, or NaN; None where none is."""
    coarse = cell.dtype != "fp32" or device_type == "cuda"  # where products may be in TF32
    for row in errors:
        for quantity, (kind, limit) in product(QUANTITIES, LIMITS.items()):
            column = f"{quantity}_{kind}_error"
            peers = [peer[column] for peer in rows if _is_peer(peer) and column in peer]
            # PyTorch's own may all have run out of memory.
            usual = max(peers, default=2 * torch.finfo(TORCH_DTYPES[cell.dtype]).eps)
            allowed = max(limit.times * usual, limit.units * (TF32_EPS if coarse else FINE_EPS))
            error = row.get(column, 0.0)
            if not error <= allowed:  # nor where it is NaN
                beside = f"PyTorch's own at most {usual:.2g}, " if peers else ""
                return (
                    f"{quantity} has {limit.words} of {error:.2g} at length {cell.seq_len}, {beside}allowed is "
                    f"{allowed:.2g}"
                )
    return None


def _is_peer(row: Row) -> bool:
    return row["impl"] == "eager" or row["impl"].startswith("sdpa")
