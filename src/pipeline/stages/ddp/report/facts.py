"""The rows of the ddp stage, parsed once: a run for every cell of which something was measured."""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from pipeline.formulas.buckets import best_bucket_bytes
from pipeline.formulas.collectives import LinearCost, fit_linear_cost
from pipeline.report.side_by_side import cell_names
from pipeline.report.table_rows import in_order, ok
from pipeline.stages.ddp.cell import CAPTURED_STEP, PHASES, TRAIN_STEP, VARIANTS, Variant

NAMES = {"none": "no communication", "torch": "torch DDP", "torch_tuned": "torch DDP tuned"}
# torch_tuned sends no buffers, as ours do not, and keeps gradients in its buckets: the fair peer.
TORCH = ("torch", "torch_tuned")
NO_COMMUNICATION = NAMES["none"]
PRECISIONS = ("fp32", "bf16")
HOST_LIMITED_IDLE = 0.2  # of a step: from there on the host decides how long it takes
# What a table lacks when no row of it has a figure.
COLUMNS = (
    *("reason", "backend", "n", "median_ms", "q1_ms", "q3_ms", "peak_bytes", "gradient_bytes", "all_reduces"),
    *("rank_difference", "variant_difference", "weight_tolerance", "span_ms", "computation_ms", "communication_ms"),
    *("hidden_ms", "hidden_pct", "computation_busy_pct", "communication_busy_pct"),
)


def label(variant: Variant) -> str:
    """Name a variant for people: `bucketed 10 MB`."""
    name = NAMES.get(variant.impl, variant.impl)
    return name if variant.bucket_size_mb is None else f"{name} {variant.bucket_size_mb} MB"


# What communicates nothing comes first: the others are held against it.
READING_ORDER = tuple(label(variant) for variant in (VARIANTS[-1], *VARIANTS[:-1]))
TORCH_DEFAULT = label(Variant("torch", 25))  # of torch.nn.parallel.DistributedDataParallel's bucket_cap_mb


@dataclass(frozen=True)
class Run:
    """One cell: its variants side by side.

    name: the precision, and what else tells it from other cells. whole: the whole steps by the host clock, a row a
    variant, as its index; those without a figure too. phases_ms: median times, a row a variant, a column a phase, NaN
    where a variant lacks it. captures: the captured steps, a row a variant.
    """

    name: str
    size: str
    world_size: int
    on_gpus: bool
    backend: str
    gradient_bytes: float
    whole: pd.DataFrame
    phases_ms: pd.DataFrame
    captures: pd.DataFrame

    @property
    def label(self) -> str:
        """The name, and whether its times are the host's rather than the GPU's."""
        return f"{self.name} (host-limited)" if self.host_limited else self.name

    @property
    def steps(self) -> pd.DataFrame:
        """The whole steps that have a figure."""
        return ok(self.whole)

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
    def idle_share(self) -> float | None:
        """The part of the captured naive step in which the GPU neither computed nor communicated; None on a CPU."""
        if not self.on_gpus or "naive" not in self.captures.index:
            return None
        captured = self.captures.loc["naive"]
        busy_ms = captured["computation_ms"] + captured["communication_ms"] - captured["hidden_ms"]
        return float(max(0.0, 1 - busy_ms / captured["span_ms"]))

    @property
    def host_limited(self) -> bool:
        """Tell whether the host and not the GPU decides how long a step takes."""
        return (self.idle_share or 0) >= HOST_LIMITED_IDLE


def whole_steps(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the whole steps in reading order, with the variant's and the cell's name; those without a figure too."""
    named = _named(rows)
    return named[(named["phase"] == TRAIN_STEP) & (named["clock"] == "host")]


def runs(rows: pd.DataFrame) -> list[Run]:
    """Parse the rows of all tables; fp32 comes first. A cell without any figure is left out."""
    cells = [cell for _, cell in _named(rows).groupby("cell_name", sort=False)]
    return [_run(cell) for cell in cells if not ok(whole_steps(cell)).empty]


def _named(rows: pd.DataFrame) -> pd.DataFrame:
    rows = rows.reindex(columns=list(dict.fromkeys([*rows.columns, *COLUMNS])))
    sizes = [None if pd.isna(size) else int(size) for size in rows["bucket_size_mb"]]
    rows["variant"] = [label(Variant(*pair)) for pair in zip(rows["impl"], sizes, strict=True)]
    rows["cell_name"] = cell_names(rows, ["precision", "size", "world_size"])
    keys = ["precision", "size", "world_size", "variant"]
    return in_order(rows, keys, {"precision": PRECISIONS, "variant": READING_ORDER})


def _run(cell: pd.DataFrame) -> Run:
    whole = whole_steps(cell).set_index("variant")
    timed = ok(cell)
    first = ok(whole).iloc[0]
    phases_ms = timed[timed["phase"].isin(PHASES)].pivot(index="variant", columns="phase", values="median_ms")
    return Run(
        name=first["cell_name"],
        size=first["size"],
        world_size=int(first["world_size"]),
        on_gpus=bool((timed["clock"] == "cuda_events").any()),
        backend=first["backend"],
        gradient_bytes=float(first["gradient_bytes"]),
        whole=whole,
        phases_ms=phases_ms.reindex(columns=PHASES),
        captures=timed[timed["phase"] == CAPTURED_STEP].dropna(subset=["hidden_pct"]).set_index("variant"),
    )


@dataclass(frozen=True)
class Fit:
    """The measured cost of an all-reduce, and the bucket size that the overhead model makes of it."""

    cost: LinearCost
    best_bucket_mb: float | None  # of 2^20 bytes; None where a call costs nothing beside its bytes


def fit(run: Run, allreduce: pd.DataFrame) -> Fit | None:
    """Fit the bursts of all-reduces of this run's backend and ranks; None where there are none to fit."""
    if allreduce.empty or "median_ms" not in allreduce:
        return None
    alike = ok(allreduce).query(
        "backend == @run.backend and world_size == @run.world_size and timing == 'burst'"
        " and impl == 'torch' and placement == 'in_place'"
    )
    try:
        cost = fit_linear_cost(alike["size_bytes"].astype(float), alike["median_ms"] / 1e3)
    except ValueError:
        return None
    best_bytes = min(run.gradient_bytes, best_bucket_bytes(run.gradient_bytes, cost)) if cost.latency_s else None
    return Fit(cost, None if best_bytes is None else best_bytes / 2**20)
