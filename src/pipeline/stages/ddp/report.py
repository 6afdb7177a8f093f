"""The ddp section: what averaging gradients costs a step, by variant and bucket size, beside torch's DDP."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from pipeline.report import phases, ways
from pipeline.report.chart import Axis, Chart
from pipeline.report.formats import count, gb, interval, ms, number, percent, text
from pipeline.report.frame import with_figures
from pipeline.report.section import Change, Section, say
from pipeline.report.table import Table
from pipeline.report.versus import FASTER, judge
from pipeline.stages.ddp.cell import CAPTURED, CAPTURED_STEP, VARIANTS
from pipeline.stages.ddp.report_overhead import by_formula

NAMES = {"none": "no communication", "torch": "torch DDP", "torch_tuned": "torch DDP, tuned"}
NONE, NAIVE = NAMES["none"], "naive"
MOST_TABLES = 2


def label(impl: str, bucket_size_mb: float | None) -> str:
    """Name a variant: `bucketed 10 MB`."""
    name = NAMES.get(impl, impl)
    return name if pd.isna(bucket_size_mb) else f"{name} {bucket_size_mb:.0f} MB"


TORCH = label("torch", 25)  # of DistributedDataParallel's bucket_cap_mb, by default
# What communicates nothing comes first.
ORDER = [label(variant.impl, variant.bucket_size_mb) for variant in (VARIANTS[-1], *VARIANTS[:-1])]


def build(rows: pd.DataFrame, beside: Mapping[str, pd.DataFrame]) -> Section:
    """Return the section of the ddp stage; beside: collectives, of whose times the overhead by formula is made."""
    names = [label(*pair) for pair in zip(rows["impl"], rows["bucket_size_mb"], strict=True)]
    rows = ways.named(rows, pd.Series(names, rows.index))
    steps = _told(ways.whole_steps(rows, ORDER, TORCH))
    cases = ways.by_trust(steps)
    if not cases:
        return Section("No whole step has a time.")
    tables = [
        ways.table(f"ways_{place}", _fewer(own), TORCH, COLUMNS, "of bucket sizes the fastest")
        for place, own in enumerate(cases, start=1)
    ]
    lead = cases[0]
    own = rows[rows["case"] == lead["case"].iloc[0]]
    sizes = by_formula(steps, beside.get("collectives", pd.DataFrame()))
    captured = own[(own["phase"] == CAPTURED_STEP) & own["impl"].isin(CAPTURED)]
    title = "One captured step: when it computes and communicates, without and with overlap"
    return Section(
        _answer(lead),
        [*tables[:MOST_TABLES], _added(steps)],
        _changes(lead),
        for_course=[
            _beside_naive(own),
            _captures(lead, captured),
            phases.lanes("capture", title, captured, ("computation", "communication", "waiting")),
            _best(sizes),
            _sweep(sizes),
        ],
    )


COLUMNS: ways.Columns = [
    ("all-reduces", "all_reduces", count),
    ("peak GB", "peak_bytes", gb),
    ("weights agree", "agree", text),
]


def _told(steps: pd.DataFrame) -> pd.DataFrame:
    """Add whether weights agree, and what a step takes beyond one of its case without communication."""
    without_ms = with_figures(steps[steps["way"] == NONE]).set_index("case")["median_ms"]
    return steps.assign(
        agree=ways.agreement(steps, ["rank_difference", "variant_difference"]),
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
    way = with_figures(steps).set_index("way")
    averaging = way.drop(index=NONE, errors="ignore")
    if averaging.empty or not {NONE, TORCH} <= {*way.index}:
        return say("{case}: of {ways} alone there are figures.", case=steps["case"].iloc[0], ways=", ".join(way.index))
    stable = averaging[averaging["status"] == "ok"]
    best = (averaging if stable.empty else stable).nsmallest(1, "median_ms").iloc[0]
    if best.name == TORCH:
        return say(
            "{case}: a step takes {none} without communication and {torch} with torch's default DDP, the fastest way.",
            case=best["case"],
            none=ms(way.loc[NONE, "median_ms"]),
            torch=ms(best["median_ms"]),
        )
    return say(
        "{case}: a step takes {none} without communication, {torch} with torch's default DDP and {ms} with the "
        "fastest way, {best}: {gain} as fast as torch's ({verdict}).",
        case=best["case"],
        none=ms(way.loc[NONE, "median_ms"]),
        torch=ms(way.loc[TORCH, "median_ms"]),
        ms=ms(best["median_ms"]),
        best=best.name,
        gain=best["gain"],
        verdict=best["verdict"],
    )


def _added(steps: pd.DataFrame) -> Chart:
    """Draw what averaging adds to a step."""
    drawn = steps[steps["way"] != NONE]
    title = "What averaging gradients adds to a step without communication"
    axes = Axis("added_ms", "ms beyond a step without communication"), Axis("way")
    words = drawn["added_ms"].map(number, na_action="ignore")
    hover = {"step (ms)": "median_ms", "times as fast as torch DDP 25 MB": "gain", "verdict": "verdict"}
    return Chart("added", title, drawn.assign(words=words), "bar", *axes, label="words", panel="case", hover=hover)


def _changes(steps: pd.DataFrame) -> list[Change]:
    """Return torch's DDP with another bucket size where it is faster than with its own."""
    found = steps[steps["impl"].eq("torch") & (steps["verdict"] == FASTER)].nsmallest(1, "median_ms")
    before = steps[steps["way"] == TORCH]
    return [
        Change(
            f"DDP's bucket_cap_mb={row['bucket_size_mb']:.0f}",
            row["case"],
            ms(before["median_ms"].iloc[0]),
            ms(row["median_ms"]),
            row.to_dict(),
        )
        for _, row in found.iterrows()
    ]


def _beside_naive(rows: pd.DataFrame) -> Table:
    """Write every way of one case beside the naive one: its phases, and how far its weights are apart."""
    steps = _told(ways.whole_steps(rows, ORDER, NAIVE)).drop(columns="communication_ms", errors="ignore")
    parts = phases.phases(rows).rows[["way", "backward", "communication", "share_pct"]]
    columns: ways.Columns = [
        ("backward (ms)", "backward", number),
        ("wait after backward (ms)", "communication", number),
        ("wait's share of the step", "share_pct", percent),
        *COLUMNS[:2],
        ("weights of ranks apart by at most", "rank_difference", number),
        COLUMNS[2],
    ]
    # Of torch's the sizes that it takes by itself.
    steps = steps[(steps["impl"] != "torch") | (steps["way"] == TORCH)]
    return ways.table("beside_naive", steps.merge(parts, "left", "way"), NAIVE, columns)


def _captures(steps: pd.DataFrame, captured: pd.DataFrame) -> Table:
    captured = captured.join(steps.set_index("way")["median_ms"].rename("timed_step_ms"), on="way")
    columns = [
        ("way", "way", text),
        ("timed step (ms)", "timed_step_ms", number),
        ("captured step (ms)", "span_ms", number),
        ("computes (ms)", "computation_ms", number),
        ("communicates (ms)", "communication_ms", number),
        ("both at once (ms)", "hidden_ms", number),
        ("share of communication hidden", "hidden_pct", percent),
    ]
    return Table("captures", f"{steps['case'].iloc[0]}: one captured step each.", captured, columns)


def _best(sizes: pd.DataFrame) -> Table:
    """Write the best bucket size by formula, a row a case, and the best measured beside the one nearest to it."""
    found = []
    for _, own in sizes.groupby("case", sort=False):
        near = own.loc[np.log(own["bucket_size_mb"] / own["best_mb"]).abs().idxmin()].to_dict()
        best = own.loc[own["median_ms"].idxmin()].to_dict()
        found.append(best | judge(near, best) | {"near_mb": near["bucket_size_mb"], "near_added_ms": near["added_ms"]})
    best = pd.DataFrame(found, columns=[*sizes, "near_mb", "near_added_ms"])
    columns = [
        ("case", "case", text),
        ("s (GB)", "gradient_bytes", gb),
        ("o (µs)", "latency_us", number),
        ("w (GB/s)", "gb_per_s", number),
        ("best by formula (MB)", "best_mb", number),
        ("its overhead (ms)", "best_ms", number),
        ("measured nearest (MB)", "near_mb", count),
        ("its overhead (ms)", "near_added_ms", number),
        ("best measured (MB)", "bucket_size_mb", count),
        ("its overhead (ms)", "added_ms", number),
        ("times as fast as the nearest (interval)", "gain", text),
        ("verdict", "verdict", text),
    ]
    best = best.assign(gain=[interval(row) for _, row in best.iterrows()])
    caption = "Best bucket size by formula, √(s·w·o), and measured; overhead measured: step beyond no communication."
    return Table("best_bucket", caption, best, columns)


def _sweep(sizes: pd.DataFrame) -> Chart:
    """Draw the overhead over the bucket size."""
    kinds = {"measured": "added_ms", "predicted": "formula_ms"}
    drawn = pd.concat([sizes.assign(kind=kind, overhead_ms=sizes[column]) for kind, column in kinds.items()])
    axes = Axis("bucket_size_mb", "bucket size (MB)", log=True), Axis("overhead_ms", "overhead of a step (ms)")
    title = "Overhead over the bucket size, measured and by formula"
    return Chart("sweep", title, drawn, "line", *axes, "kind", panel="case")
