"""The rows of the step8b stage: a run for every cell in which a whole step was timed."""

import pandas as pd

from pipeline.formulas.flops import causal_train_step_flops
from pipeline.formulas.sizes import SIZES
from pipeline.report import side_by_side
from pipeline.stages.step8b.cell import IMPLS

NAMES = {
    "torch_eager": "torch's parts",
    "torch_compiled": "torch's compiled parts",
    "torch_selective": "torch's parts, attention kept",
    "ours": "ours",
    "ours_fully_shard": "ours under torch's FSDP",
}
PEERS, OURS = ("torch_compiled", "torch_eager", "torch_selective"), ("ours", "ours_fully_shard")
# Each with what stands before it.
KEPT = {
    "layers_that_keep_input": "the input alone",
    "layers_that_keep_attention": "attention's output",
    "layers_that_keep_qkv": "q, k and v",
    "layers_that_keep": "gate and up",
}
AXES = ["size", "context_length", "world_size", "impls"]


class Run(side_by_side.Run):
    """One cell: its implementations side by side."""

    def of(self, what: str) -> pd.DataFrame:
        """Return the rows that measure one thing, such as `check`."""
        return self.rows[self.rows["measures"] == what]

    @property
    def budget_ms(self) -> pd.DataFrame:
        """Where a step's time goes: one column per implementation, one row per kind of work."""
        return self.of("budget").pivot(index="category", columns="impl", values="work_ms")

    @property
    def peer(self) -> str | None:
        """The best of torch's that was timed."""
        return next((impl for impl in PEERS if impl in self.steps.index), None)

    @property
    def ours(self) -> str | None:
        """The fused model that was timed, under our FSDP if it can be."""
        return next((impl for impl in OURS if impl in self.steps.index), None)

    @property
    def context_length(self) -> int:
        """The tokens of a sequence."""
        return int(self.whole["context_length"].iloc[0])

    @property
    def model(self) -> str:
        """What trains: `8B at context 32,768 on 2 ranks`."""
        return f"{self.size} at context {self.context_length:,} on {self.world_size} ranks"

    @property
    def work(self) -> float:
        """The FLOPs of a step."""
        vocab_size = int(self.whole["setting_vocab_size"].iloc[0])
        return causal_train_step_flops(SIZES[self.size], vocab_size, self.world_size, self.context_length)


def named(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows in reading order, with the names of their implementation and cell."""
    rows = rows.assign(way=rows["impl"], name=rows["impl"].map(NAMES))
    return side_by_side.named(rows, IMPLS, AXES)


def runs(rows: pd.DataFrame) -> list[Run]:
    """Make a run of every cell in which a whole step was timed, the most work a step first."""
    return sorted(side_by_side.runs(named(rows), Run), key=lambda run: run.work, reverse=True)
