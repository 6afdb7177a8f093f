"""The rows of the step8b stage: a run for every cell in which a whole step was timed."""

from dataclasses import dataclass

import pandas as pd

from pipeline.formulas.flops import causal_train_step_flops
from pipeline.formulas.sizes import SIZES
from pipeline.report.table_rows import complete, in_order, ok
from pipeline.stages.step8b.cell import FUSIONS, IMPLS, TRAIN_STEP
from pipeline.stages.step8b.rows import ROW_TYPES

NAMES = {
    "torch_eager": "torch's parts",
    "torch_compiled": "torch's compiled parts",
    "ours": "ours",
    "ours_fully_shard": "ours under torch's FSDP",
}
PEERS, OURS = ("torch_compiled", "torch_eager"), ("ours", "ours_fully_shard")


@dataclass(frozen=True, eq=False)
class Run:
    """One cell. All tables but `fusions` are by implementation.

    whole: the whole steps by the host clock, those without a figure too. budget_ms: one column per implementation, one
    row per kind of work. fusions: in the order in which they join.
    """

    size: str
    context_length: int
    world_size: int
    whole: pd.DataFrame
    budget_ms: pd.DataFrame
    fusions: pd.DataFrame
    checks: pd.DataFrame
    descents: pd.DataFrame

    @property
    def steps(self) -> pd.DataFrame:
        """The whole steps that have a figure."""
        return ok(self.whole)

    @property
    def peer(self) -> str | None:
        """The best of torch's that was timed."""
        return next((impl for impl in PEERS if impl in self.steps.index), None)

    @property
    def ours(self) -> str | None:
        """The fused model that was timed, under our FSDP if it can be."""
        return next((impl for impl in OURS if impl in self.steps.index), None)

    @property
    def model(self) -> str:
        """What trains: `8B at context 32,768 on 2 ranks`."""
        return f"{self.size} at context {self.context_length:,} on {self.world_size} ranks"

    @property
    def work(self) -> float:
        """The FLOPs of a step."""
        vocab_size = int(self.steps["setting_vocab_size"].iloc[0])
        return causal_train_step_flops(SIZES[self.size], vocab_size, self.world_size, self.context_length)


def whole_steps(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the whole steps, with names for people; those without a figure too."""
    rows = complete(rows, ROW_TYPES)
    whole = rows[(rows["phase"] == TRAIN_STEP) & (rows["clock"] == "host")]
    return in_order(whole.assign(name=whole["impl"].map(NAMES)), ["impl"], {"impl": IMPLS})


def runs(rows: pd.DataFrame) -> list[Run]:
    """Parse the rows of all tables, the most work a step first. A cell without any timed step is left out."""
    cells = [cell for _, cell in rows.groupby(["size", "context_length", "world_size", "impls"], sort=False)]
    found = [_run(cell) for cell in cells if not ok(whole_steps(cell)).empty]
    return sorted(found, key=lambda run: run.work, reverse=True)


def _run(cell: pd.DataFrame) -> Run:
    whole, measured = whole_steps(cell), ok(complete(cell, ROW_TYPES))
    budget, fusions, checks, descents = (
        measured[measured["measures"] == what] for what in ("budget", "fusion", "check", "descent")
    )
    first = whole.iloc[0]
    return Run(
        size=first["size"],
        context_length=int(first["context_length"]),
        world_size=int(first["world_size"]),
        whole=whole.set_index("impl"),
        budget_ms=budget.pivot(index="category", columns="impl", values="work_ms"),
        fusions=in_order(fusions, ["fusion"], {"fusion": FUSIONS}),
        checks=checks.set_index("impl"),
        descents=descents.set_index("impl"),
    )
