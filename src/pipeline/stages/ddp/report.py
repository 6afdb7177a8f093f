"""The ddp section: what averaging gradients costs a step, by variant and bucket size, beside torch's DDP."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from pipeline.formulas import buckets
from pipeline.formulas.collectives import LinearCost, fit_linear_cost
from pipeline.report import ways
from pipeline.report.chart import Axis, Chart
from pipeline.report.formats import number
from pipeline.report.frame import alike, with_figures
from pipeline.report.section import Section, say
from pipeline.report.table import Table
from pipeline.report.versus import judge
from pipeline.stages.ddp.cell import CAPTURED, CAPTURED_STEP, VARIANTS

NAMES = {"none": "no communication", "torch": "torch DDP", "torch_tuned": "torch DDP, tuned"}
NONE, NAIVE = NAMES["none"], "naive"
MOST_TABLES = 2
MB = 2**20
# NCCL sends less in other ways, whose times lie on another line; gradients are larger.
LEAST_BYTES = 100_000
ITSELF = {"gain": "1.00×", "verdict": "same"}
COLUMNS = "all_reduces peak_bytes weights_agree"
# The columns of the table of bucket sizes, and the headings of those whose names do not say it.
BEST = {
    **{"case": "", "s_bytes": "", "o_us": "o, µs", "w_gb_per_s": "w, GB/s"},
    **{"best_by_formula_mb": "best by formula, MiB", "its_overhead_ms": ""},
    **{"measured_nearest_mb": "measured nearest, MiB", "overhead_there_ms": ""},
    **{"fastest_mb": "fastest, MiB", "overhead_then_ms": "", "beside_the_nearest": ""},
}


def label(impl: str, bucket_size_mb: float | None) -> str:
    """Name a variant: `bucketed 10 MiB`."""
    name = NAMES.get(impl, impl)
    return name if pd.isna(bucket_size_mb) else f"{name} {bucket_size_mb:.0f} MiB"


TORCH = label("torch", 25)  # of DistributedDataParallel's bucket_cap_mb, by default
# What communicates nothing comes first.
ORDER = [label(variant.impl, variant.bucket_size_mb) for variant in (VARIANTS[-1], *VARIANTS[:-1])]


def build(rows: pd.DataFrame, beside: Mapping[str, pd.DataFrame]) -> Section:
    """Return the section of the ddp stage; beside: collectives, of whose times the overhead by formula is made."""
    rows = ways.of_cases(rows, [label(*pair) for pair in zip(rows["impl"], rows["bucket_size_mb"], strict=True)])
    steps = _steps(rows, TORCH)
    cases = ways.by_trust(steps)
    if not cases:
        return Section(ways.NO_TIME)
    lead = cases[0]
    own = rows[rows["case"] == lead["case"].iloc[0]]
    tables = [
        ways.table(
            f"ways_{place}", _fewer(each), TORCH, COLUMNS, "each way at its fastest bucket size, and torch's default"
        )
        for place, each in enumerate(cases[:MOST_TABLES], start=1)
    ]
    captured = own[(own["phase"] == CAPTURED_STEP) & own["impl"].isin(CAPTURED)]
    return Section(
        _answer(lead),
        [*tables, _added(steps)],
        ways.changes(lead[lead["impl"] == "torch"], "DDP's bucket_cap_mb={bucket_size_mb:.0f}", ORDER, "peak_bytes"),
        for_course=[
            _beside_naive(own),
            ways.lanes(captured, ("computation", "communication", "waiting")),
            _best(steps, beside.get("collectives", pd.DataFrame())),
        ],
    )


def _steps(rows: pd.DataFrame, base: str) -> pd.DataFrame:
    """Return the whole steps, with what each takes beyond one of its case without communication."""
    steps = ways.whole_steps(rows, ORDER, base)
    without_ms = with_figures(steps[steps["way"] == NONE]).set_index("case")["median_ms"]
    return steps.assign(
        weights_agree=ways.agreement(steps, ["rank_difference", "variant_difference"]),
        added_ms=steps["median_ms"] - steps["case"].map(without_ms),
    )


def _fewer(steps: pd.DataFrame) -> pd.DataFrame:
    """Keep of each implementation's bucket sizes the fastest, torch's default, and what has no figures.

    The chart has all.
    """
    timed = with_figures(steps)
    fastest = timed.sort_values("median_ms", kind="stable").drop_duplicates("impl")["way"]
    return steps[steps["way"].isin([*fastest, TORCH]) | ~steps.index.isin(timed.index)]


def _answer(steps: pd.DataFrame) -> str:
    way = with_figures(steps).set_index("way", drop=False)
    averaging = way[way["way"] != NONE]
    if averaging.empty or not {NONE, TORCH} <= {*way.index}:
        return ways.only(way)
    stable = averaging[averaging["status"] == "ok"]
    best = (averaging if stable.empty else stable).nsmallest(1, "median_ms").iloc[0]
    return say(
        "{best[case]}: a step takes {none[median_ms]:ms} without communication, {torch[median_ms]:ms} with torch's "
        "default DDP and {best[median_ms]:ms} with the fastest way, {best[way]}: {than[gain]} as fast as torch's "
        "({than[verdict]}).",
        best=best,
        none=way.loc[NONE],
        torch=way.loc[TORCH],
        than=ITSELF if best["way"] == TORCH else best,
    )


def _added(steps: pd.DataFrame) -> Chart:
    """Draw what averaging adds to a step."""
    drawn = steps[steps["way"] != NONE]
    title = "What averaging gradients adds to a step without communication"
    axes = Axis("added_ms", "ms beyond a step without communication"), Axis("way")
    words = drawn["added_ms"].map(number, na_action="ignore")
    hover = {"step (ms)": "median_ms", "times as fast as torch DDP 25 MiB": "gain", "verdict": "verdict"}
    return Chart("added", title, drawn.assign(words=words), "bar", *axes, label="words", panel="case", hover=hover)


def _beside_naive(rows: pd.DataFrame) -> Table:
    """Write every way of one case beside the naive one, with its phases; of torch's DDP the default bucket size."""
    phases = ways.phases(rows)[["backward", "communication", "share_pct"]]
    phases.columns = ["backward_ms", "wait_after_backward_ms", "share_pct"]
    steps = _steps(rows, NAIVE).join(phases, on="way")
    shown = steps[(steps["impl"] != "torch") | (steps["way"] == TORCH)]
    return ways.table("beside_naive", shown, NAIVE, f"{' '.join(phases)} {COLUMNS}")


def _best(steps: pd.DataFrame, collectives: pd.DataFrame) -> Table:
    """Write the best bucket size by formula, a row a case, and the fastest measured beside the one nearest to it."""
    found = []
    for case, own in with_figures(steps[steps["impl"] == "bucketed"]).groupby("case", sort=False):
        cost, total = fitted_cost(own.iloc[0], collectives), own["gradient_bytes"].iloc[0]
        if cost is None or not cost.latency_s:
            continue
        best_mb = min(total, buckets.best_bucket_bytes(total, cost)) / MB
        near = own.loc[np.log(own["bucket_size_mb"] / best_mb).abs().idxmin()]
        fastest = own.loc[own["median_ms"].idxmin()]
        formula = (total, 1e6 * cost.latency_s, cost.bytes_per_s / 1e9, best_mb)
        overhead_ms = 1e3 * buckets.least_overhead_s(total, cost)
        measured = [part for row in (near, fastest) for part in (row["bucket_size_mb"], row["added_ms"])]
        found.append([case, *formula, overhead_ms, *measured, judge(near, fastest)["verdict"]])
    best = pd.DataFrame(found, columns=list(BEST))
    return Table.of("best_bucket", "", best, " ".join(best), heads={name: head for name, head in BEST.items() if head})


def fitted_cost(step: pd.Series, collectives: pd.DataFrame) -> LinearCost | None:
    """Fit the back-to-back all-reduces of a step's backend and ranks; None where there are none to fit."""
    if collectives.empty:
        return None
    burst = {"collective": "all_reduce", "dtype": "fp32", "impl": "torch", "placement": "in_place", "timing": "burst"}
    own = alike(with_figures(collectives), burst | {"nodes": 1} | step[["backend", "world_size"]].to_dict())
    own = own[own["size_bytes"] >= LEAST_BYTES]
    try:
        return fit_linear_cost(own["size_bytes"].astype(float), own["median_ms"] / 1e3)
    except ValueError:
        return None
