"""The profile rows parsed once: a capture a cell, with times, categories, kernels and attention of each range."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import pandas as pd

from pipeline.formulas.size_order import BY_SIZE, by_size
from pipeline.report.table_rows import in_order, ok
from pipeline.stages.profile.cell import ATTENTION_PHASES, CLOCKS, PASSES, Cell

AXES = [field.name for field in fields(Cell)]
ORDERS = {"precision": ("fp32", "bf16"), "size": BY_SIZE, "profiler": ("auto", "nsys", "torch")}
PASS_WORDS = {"inference": "forward pass", "forward_backward": "forward and backward", "train_step": "training step"}
MATMUL = "matmul"


@dataclass(frozen=True, eq=False)
class Capture:
    """One captured cell.

    times_ms: median times, one row per range, one column per clock, NaN where it was not read. work_ms: one row per
    range, one column per category. kernels: those with the most time, by range. attention: one row per range, as
    `_attention` gives it.
    """

    cell: Cell
    batch_size: int
    rounds: int
    machine: str
    captured_by: str
    on_gpu: bool
    times_ms: pd.DataFrame
    work_ms: pd.DataFrame
    kernels: pd.DataFrame
    attention: pd.DataFrame

    def total_ms(self, path: str) -> float:
        """Return the time of all kernels of a range."""
        return float(self.work_ms.loc[path].sum())

    def share(self, path: str, category: str) -> float:
        """Return the part of a range's kernel time that a category takes."""
        return float(self.shares(path).get(category, 0.0))

    def shares(self, path: str) -> pd.Series:
        """Return every category's part of a range's kernel time, the largest first."""
        return (self.work_ms.loc[path] / self.total_ms(path)).sort_values(ascending=False, kind="stable")

    def top_kernels(self, path: str) -> pd.DataFrame:
        """Return the kernels with the most time in a range."""
        return self.kernels[self.kernels["range"] == path].sort_values("rank")

    @property
    def work(self) -> str:
        """What was captured: kernels, or on a CPU operators."""
        return "kernels" if self.on_gpu else "operators"

    @property
    def setting(self) -> str:
        """What was captured: `2.7B, bf16, batch 4, context 1024`."""
        return f"{self.cell.size}, {self.cell.precision}, batch {self.batch_size}, context {self.cell.context_length}"


def captures(rows: pd.DataFrame) -> list[Capture]:
    """Parse the rows of all tables into a capture a cell, in reading order; a cell without one is left out."""
    cells = [cell for _, cell in ok(sorted_rows(rows)).groupby(AXES, sort=False)]
    return [_capture(cell) for cell in cells if (cell["kind"] == "category").any()]


def sorted_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows in reading order."""
    return in_order(rows, AXES, ORDERS)


def _capture(rows: pd.DataFrame) -> Capture:
    first = rows.iloc[0]
    times, categories, kernels, attention = (
        rows[rows["kind"] == kind] for kind in ("time", "category", "kernel", "attention")
    )
    return Capture(
        cell=Cell(first["precision"], first["size"], int(first["context_length"]), first["profiler"]),
        batch_size=int(first["setting_batch_size"]),
        rounds=int(first["setting_captured_rounds"]),
        machine=first["machine"],
        captured_by=categories["captured_by"].iloc[0],
        on_gpu=not kernels["kernel"].str.startswith("aten::").any(),
        times_ms=times.pivot(index="range", columns="clock", values="median_ms").reindex(columns=CLOCKS),
        work_ms=categories.pivot(index="range", columns="category", values="time_ms").fillna(0.0),
        kernels=kernels,
        attention=_attention(attention),
    )


def _attention(rows: pd.DataFrame) -> pd.DataFrame:
    """Set softmax beside the two matrix products of attention, of all layers: one row per range with all its phases.

    time_ratio: softmax's time over that of the products; flops_ratio: the FLOPs of the products over those of softmax.
    """
    scores, softmax, final = ATTENTION_PHASES
    time, matmul, flops = (
        rows.pivot(index="range", columns="phase", values=name).reindex(columns=ATTENTION_PHASES).dropna().astype(float)
        for name in ("time_ms", "matmul_ms", "flops")
    )
    found = pd.DataFrame({"total_ms": time.sum(axis=1), "softmax_ms": time[softmax], "softmax_flops": flops[softmax]})
    found = found.assign(products_ms=matmul[scores] + matmul[final], products_flops=flops[scores] + flops[final])
    return found.assign(
        time_ratio=found["softmax_ms"] / found["products_ms"],
        flops_ratio=found["products_flops"] / found["softmax_flops"],
    )


def main_captures(captured: Sequence[Capture]) -> list[Capture]:
    """Keep the captures to speak of: by the profiler chosen here, at the longest context that most models have."""
    by_choice = [one for one in captured if one.cell.profiler == "auto"] or captured
    path = shown_pass(by_choice)
    sizes = {(one.cell.context_length, one.cell.size) for one in by_choice if path in one.work_ms.index}
    contexts = pd.Series([context for context, _ in sizes]).value_counts()
    longest = contexts[contexts == contexts.max()].index.max()
    return [one for one in by_choice if one.cell.context_length == longest]


def shown_pass(captured: Sequence[Capture]) -> str:
    """Choose the pass to speak of: a training step, where one was captured."""
    return [name for name in PASSES if any(name in one.work_ms.index for one in captured)][-1]


def lead(captured: Sequence[Capture]) -> Capture:
    """Choose the capture to speak of: the largest model that has the shown pass, in the lowest precision."""
    whole = having(captured, shown_pass(captured))
    sizes = by_size({one.cell.size for one in whole})
    return max(whole, key=lambda one: (sizes.index(one.cell.size), ORDERS["precision"].index(one.cell.precision)))


def having(captured: Sequence[Capture], path: str, like: Capture | None = None) -> list[Capture]:
    """Keep the captures of a range, of one model only where one like it is given: one in each precision."""
    of_size = [one for one in captured if like is None or one.cell.size == like.cell.size]
    return [one for one in of_size if path in one.work_ms.index]
