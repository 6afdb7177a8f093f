"""Build the ddp section: what averaging gradients costs by variant and bucket size, compared with torch's DDP."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from pipeline.formulas import buckets
from pipeline.formulas.collectives import LinearCost, fit_linear_cost
from pipeline.report import ways
from pipeline.report.chart import Chart
from pipeline.report.formats import number
from pipeline.report.frame import matching, with_values
from pipeline.report.section import Section
from pipeline.report.table import Table
from pipeline.report.versus import judge
from pipeline.report.words import Words
from pipeline.stages.ddp.cell import VARIANTS

WORDS = Words(__file__)
NAMES = {"none": "no communication", "torch": "torch DDP", "torch_tuned": "torch DDP, views"}
NONE, NAIVE, OVERLAP = NAMES["none"], "naive", "overlap"
OUR_IMPLS = ("naive", "flat", "overlap", "bucketed")
SHOWN = "all_reduces peak_bytes weights_agree"


def label(impl: str, bucket_size_mb: float | None) -> str:
    """Name a variant: `bucketed 10 MiB`."""
    name = NAMES.get(impl, impl)
    return name if pd.isna(bucket_size_mb) else f"{name} {bucket_size_mb:.0f} MiB"


TORCH = label("torch", 25)  # DistributedDataParallel's default bucket_cap_mb
# The variant without communication comes first.
ORDER = [
    label(variant.impl, variant.bucket_size_mb)
    for variant in sorted(VARIANTS, key=lambda variant: variant.impl != "none")
]
OURS = [label(variant.impl, variant.bucket_size_mb) for variant in VARIANTS if variant.impl in OUR_IMPLS]
TORCH_WAYS = [way for way in ORDER if way not in (*OURS, NONE)]


def build(rows: pd.DataFrame, other_stages: Mapping[str, pd.DataFrame]) -> Section:
    """Return the section of the ddp stage; other_stages: rows of collectives, to predict the overhead from."""
    rows = ways.of_cases(rows, [label(*pair) for pair in zip(rows["impl"], rows["bucket_size_mb"], strict=True)])
    steps = _steps(rows, TORCH)
    cases = ways.by_trust(steps, [NONE, TORCH])
    if not cases:
        return Section(ways.WORDS.say("no_time"))
    lead, of_case = cases[0], rows[rows["case"] == cases[0]["case"].iloc[0]]
    tables = ways.tables([_fastest_sizes(each) for each in cases], TORCH, SHOWN, WORDS.say("fewer"))
    scaling = ways.scaling_table(_scaled(steps), WORDS.say("peer"), "naive_ms overlap_ms")
    return Section(
        _answer(lead),
        [*(tables if scaling.is_empty else [tables[0], scaling]), _added(steps)],
        # Advice for users of torch's DDP: another bucket size.
        ways.changes(lead, WORDS.defined["change"], list(lead["way"][lead["impl"] == "torch"]), "peak_bytes"),
        for_course=[
            _versus_naive(of_case),
            ways.lanes(ways.captures(of_case, lead), ("computation", "communication", "waiting")),
            _best_bucket(steps, other_stages.get("collectives", pd.DataFrame())),
        ],
    )


def _steps(rows: pd.DataFrame, base: str) -> pd.DataFrame:
    """Return the whole steps, with the time each adds to the step without communication in its case."""
    steps = ways.whole_steps(rows, ORDER, base)
    without_ms = with_values(steps[steps["way"] == NONE]).set_index("case")["median_ms"]
    return steps.assign(
        weights_agree=ways.agreement(steps, ["rank_difference", "variant_difference"]),
        added_ms=steps["median_ms"] - steps["case"].map(without_ms),
    )


def _fastest_sizes(steps: pd.DataFrame) -> pd.DataFrame:
    """Keep each implementation's fastest bucket size, torch's default and rows without values; the chart has all."""
    timed = with_values(steps)
    fastest = timed.sort_values("median_ms", kind="stable").drop_duplicates("impl")["way"]
    return steps[steps["way"].isin([*fastest, TORCH]) | ~steps.index.isin(timed.index)]


def _answer(steps: pd.DataFrame) -> str:
    """Compare the fastest of ours with the fastest of torch's; only stable steps count if both have any."""
    timed = with_values(steps).set_index("way", drop=False).sort_values("median_ms")
    ours, torchs = (timed[timed["way"].isin(names)] for names in (OURS, TORCH_WAYS))
    if ours.empty or torchs.empty or NONE not in timed.index:
        return ways.say_which_have_results(timed)
    stable = [each[each["status"] == "ok"] for each in (ours, torchs)]
    best, torch = (each.iloc[0] for each in (stable if all(map(len, stable)) else (ours, torchs)))
    return WORDS.say("answer", best=best, none=timed.loc[NONE], torch=torch, than=judge(torch, best))


def _scaled(steps: pd.DataFrame) -> pd.DataFrame:
    """Return how ours scales, with the step times of the variants that send one gradient at a time."""
    scaled = ways.fastest_by_ranks(steps, OURS, TORCH_WAYS, NONE)
    by_way = with_values(steps).set_index(["way", "case"])["median_ms"]
    step_times = {f"{way}_ms": scaled["case"].map(by_way.get(way, {})) for way in (NAIVE, OVERLAP)}
    return scaled.assign(**step_times)


def _added(steps: pd.DataFrame) -> Chart:
    drawn = steps[steps["way"] != NONE]
    drawn = drawn.assign(words=drawn["added_ms"].map(number, na_action="ignore"))
    hover = "median_ms gain verdict"
    return WORDS.chart("added", drawn, "bar", "added_ms", "way", label="words", panel="case", hover=hover)


def _versus_naive(rows: pd.DataFrame) -> Table:
    """Compare every way of one case with naive, with its phases; torch's DDP only at its default bucket size."""
    steps = _steps(rows, NAIVE).join(ways.phases(rows), on="way")
    shown = steps[(steps["impl"] != "torch") | (steps["way"] == TORCH)]
    return ways.table("beside_naive", shown, NAIVE, f"backward_phase_ms communication_phase_ms share_pct {SHOWN}")


def _best_bucket(steps: pd.DataFrame, collectives: pd.DataFrame) -> Table:
    """Tabulate the best bucket size by formula per case, and compare the fastest measured with the nearest to it."""
    found = []
    for case, of_case in with_values(steps[steps["impl"] == "bucketed"]).groupby("case", sort=False):
        cost, total = fitted_cost(of_case.iloc[0], collectives), of_case["gradient_bytes"].iloc[0]
        if cost is None or not cost.latency_s:
            continue
        best_mb = min(total, buckets.best_bucket_bytes(total, cost)) / 2**20
        near = of_case.loc[np.log(of_case["bucket_size_mb"] / best_mb).abs().idxmin()]
        fastest = of_case.loc[of_case["median_ms"].idxmin()]
        formula = {"s_bytes": total, "o_us": 1e6 * cost.latency_s, "w_gb_per_s": cost.bytes_per_s / 1e9}
        formula |= {"best_by_formula_mb": best_mb, "its_overhead_ms": 1e3 * buckets.least_overhead_s(total, cost)}
        measured = {"measured_nearest_mb": near["bucket_size_mb"], "overhead_there_ms": near["added_ms"]}
        measured |= {"fastest_mb": fastest["bucket_size_mb"], "overhead_then_ms": fastest["added_ms"]}
        found.append({"case": case, **formula, **measured, "beside_the_nearest": judge(near, fastest)["verdict"]})
    best = pd.DataFrame(found)
    return WORDS.table("best_bucket", best, " ".join(best))


def fitted_cost(step: pd.Series, collectives: pd.DataFrame) -> LinearCost | None:
    """Fit a linear cost to the back-to-back all-reduces of a step's backend and ranks; None if there is no fit."""
    if collectives.empty:
        return None
    burst = {"collective": "all_reduce", "dtype": "fp32", "impl": "torch", "placement": "in_place", "timing": "burst"}
    calls = matching(with_values(collectives), burst | {"nodes": 1} | step[["backend", "world_size"]].to_dict())
    # NCCL sends smaller sizes in other ways, whose times lie on another line; gradients are larger.
    calls = calls[calls["size_bytes"] >= 100_000]
    try:
        return fit_linear_cost(calls["size_bytes"].astype(float), calls["median_ms"] / 1e3)
    except ValueError:
        return None
