"""The rows of the step8b stage, parsed once: a run for every cell in which a whole step was timed."""

from dataclasses import dataclass

import pandas as pd

from pipeline.formulas.flops import causal_train_step_flops
from pipeline.formulas.sizes import SIZES
from pipeline.report.table_rows import in_order, ok
from pipeline.stages.step8b.cell import FUSIONS, IMPLS, TRAIN_STEP

NAMES = {
    "torch_eager": "torch's parts",
    "torch_compiled": "torch's compiled parts",
    "ours": "ours",
    "ours_fully_shard": "ours under torch's FSDP",
}
PEERS, OURS = ("torch_compiled", "torch_eager"), ("ours", "ours_fully_shard")
# What a table lacks when no row of it has a figure.
COLUMNS = (
    *("reason", "phase", "clock", "median_ms", "q1_ms", "q3_ms", "n", "mfu_pct", "peak_bytes", "layers_that_keep"),
    *("first_step_ms", "category", "work_ms", "fusion", "step_ms", "loss", "loss_error", "gradient_error"),
    *("first_loss", "last_loss"),
)


@dataclass(frozen=True)
class Run:
    """One cell. All tables but `fusions` are by implementation.

    whole: the whole steps by the host clock, those without a figure too. budget_ms: a column an implementation, a row a
    kind of work. fusions: in the order in which they join.
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


def whole_steps(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the whole steps, with names for people; those without a figure too."""
    rows = rows.reindex(columns=list(dict.fromkeys([*rows.columns, *COLUMNS])))
    whole = rows[(rows["phase"] == TRAIN_STEP) & (rows["clock"] == "host")]
    whole = whole.assign(name=whole["impl"].map(NAMES))
    return in_order(whole, ["impl"], {"impl": IMPLS})


def runs(rows: pd.DataFrame) -> list[Run]:
    """Parse the rows of all tables, the most work a step first. A cell without any timed step is left out."""
    cells = [cell for _, cell in rows.groupby(["size", "context_length", "world_size", "impls"], sort=False)]
    found = [_run(cell) for cell in cells if not ok(whole_steps(cell)).empty]
    return sorted(found, key=_work, reverse=True)


def _work(run: Run) -> float:
    vocab_size = int(run.steps["setting_vocab_size"].iloc[0])
    return causal_train_step_flops(SIZES[run.size], vocab_size, run.world_size, run.context_length)


def _run(cell: pd.DataFrame) -> Run:
    whole = whole_steps(cell)
    cell = cell.reindex(columns=list(dict.fromkeys([*cell.columns, *COLUMNS])))
    measured = dict(iter(ok(cell).groupby("measures")))
    nothing = cell.iloc[:0]
    first = whole.iloc[0]
    fusions = in_order(measured.get("fusion", nothing), ["fusion"], {"fusion": FUSIONS})
    return Run(
        size=first["size"],
        context_length=int(first["context_length"]),
        world_size=int(first["world_size"]),
        whole=whole.set_index("impl"),
        budget_ms=measured.get("budget", nothing).pivot(index="category", columns="impl", values="work_ms"),
        fusions=fusions,
        checks=measured.get("check", nothing).set_index("impl"),
        descents=measured.get("descent", nothing).set_index("impl"),
    )
