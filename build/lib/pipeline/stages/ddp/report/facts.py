"""The rows of the ddp stage: a run for every cell of which something was measured."""

import math
from collections.abc import Sequence

import pandas as pd

from pipeline.formulas.collectives import LinearCost, fit_linear_cost
from pipeline.report import side_by_side
from pipeline.report.outcomes import IDLE_PCT
from pipeline.report.table_rows import ok
from pipeline.stages.ddp.cell import CAPTURED_STEP, VARIANTS

NAMES = {"none": "no communication", "torch": "torch DDP", "torch_tuned": "torch DDP tuned"}
# torch_tuned sends no buffers, as ours do not, and keeps gradients in its buckets: the fair peer.
TORCH = ("torch", "torch_tuned")
NO_COMMUNICATION = NAMES["none"]


def label(impl: str, bucket_size_mb: float | None) -> str:
    """Name a variant for people: `bucketed 10 MB`; without buckets the size is None or NaN."""
    name = NAMES.get(impl, impl)
    return name if pd.isna(bucket_size_mb) else f"{name} {bucket_size_mb:.0f} MB"


# What communicates nothing comes first: the others are held against it.
READING_ORDER = tuple(label(variant.impl, variant.bucket_size_mb) for variant in (VARIANTS[-1], *VARIANTS[:-1]))
TORCH_DEFAULT = label("torch", 25)  # of torch.nn.parallel.DistributedDataParallel's bucket_cap_mb


class Run(side_by_side.Run):
    """One cell: its variants side by side."""

    @property
    def label(self) -> str:
        """The name, and whether its times are the host's rather than the GPU's."""
        return f"{self.name} (host-limited)" if self.host_limited else self.name

    @property
    def on_gpus(self) -> bool:
        """Tell whether it ran on GPUs."""
        return bool((self.rows["clock"] == "cuda_events").any())

    @property
    def captures(self) -> pd.DataFrame:
        """The captured steps that communicate."""
        return self.rows[self.rows["phase"] == CAPTURED_STEP].dropna(subset=["hidden_pct"])

    @property
    def left(self) -> pd.DataFrame:
        """The communication that is left when backward is done, one row per variant that communicates."""
        return self.rows[self.rows["phase"] == "communication"]

    def fastest(self, impls: Sequence[str]) -> pd.Series | None:
        """Return the step with the least median of these implementations; its name is the variant."""
        candidates = self.steps[self.steps["impl"].isin(impls)]
        return None if candidates.empty else candidates.loc[candidates["median_ms"].idxmin()]

    @property
    def beyond_ms(self) -> pd.Series:
        """What each step that averages takes beyond one without communication; empty without that one."""
        steps_ms = self.steps["median_ms"]
        if NO_COMMUNICATION not in steps_ms:
            return pd.Series(dtype=float)
        return (steps_ms - steps_ms[NO_COMMUNICATION]).drop(NO_COMMUNICATION)

    @property
    def idle_share(self) -> float:
        """The part of the captured naive step in which the GPU neither computed nor communicated; NaN on a CPU."""
        if not self.on_gpus or "naive" not in self.captures.index:
            return math.nan
        captured = self.captures.loc["naive"]
        busy_ms = captured["computation_ms"] + captured["communication_ms"] - captured["hidden_ms"]
        return float(max(0.0, 1 - busy_ms / captured["span_ms"]))

    @property
    def host_limited(self) -> bool:
        """Tell whether the host and not the GPU decides how long a step takes."""
        return 100 * self.idle_share >= IDLE_PCT


def named(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows in reading order, with the names of their variant and cell."""
    variants = [label(*pair) for pair in zip(rows["impl"], rows["bucket_size_mb"], strict=True)]
    return side_by_side.named(rows.assign(way=variants), READING_ORDER)


def runs(rows: pd.DataFrame) -> list[Run]:
    """Make a run of every cell of which something was measured; fp32 comes first."""
    return side_by_side.runs(named(rows), Run)


def all_reduce_cost(run: Run, allreduce: pd.DataFrame) -> LinearCost | None:
    """Fit the bursts of all-reduces of this run's backend and ranks; None where there are none to fit."""
    if allreduce.empty or "median_ms" not in allreduce:
        return None
    burst = {"backend": run.steps["backend"].iloc[0], "world_size": run.world_size, "nodes": 1}
    burst |= {"timing": "burst", "impl": "torch", "placement": "in_place"}
    alike = ok(allreduce)
    alike = alike[(alike[list(burst)] == pd.Series(burst)).all(axis=1)]
    try:
        return fit_linear_cost(alike["size_bytes"].astype(float), alike["median_ms"] / 1e3)
    except ValueError:
        return None
