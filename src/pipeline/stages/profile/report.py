"""The profile section: where the time of a step goes, by kind of kernel, by kernel, and inside attention."""

import json
from collections.abc import Mapping

import pandas as pd

from pipeline.formulas.parameters import BY_SIZE
from pipeline.instruments.profilers.kernel_categories import CATEGORIES
from pipeline.report.chart import Axis, Chart
from pipeline.report.formats import written
from pipeline.report.frame import in_order, matching, with_values
from pipeline.report.section import Section
from pipeline.report.table import Table
from pipeline.report.words import Words
from pipeline.stages.profile.cell import ATTENTION_PHASES, BACKWARD_BY_PART, PASSES

WORDS = Words(__file__)
CELL = ["precision", "size", "context_length", "profiler"]
ORDERS = {
    "precision": ("fp32", "bf16"),
    "size": BY_SIZE,
    "profiler": ("auto", "nsys", "torch"),
    "range": (*PASSES, BACKWARD_BY_PART),
}
FORWARD = PASSES[0]
NAMES = dict(zip(PASSES, ("forward only", "forward and backward", "whole step"), strict=True))
_, MASK, SOFTMAX, _ = ATTENTION_PHASES
MATMUL, OTHER = "matmul", "other"
SHOWN_KINDS = (MATMUL, "softmax", "elementwise", "copy", "optimizer")
RARE_PCT = 1.0  # a kind whose share is below this in every bar is drawn as other
NAMED, MOST_KERNELS = 2, 3
LONG_NAME = r"(?<=^.{55}).{5,}(?=.{12}$)"
# The kernels that a layer launches outside its named parts: the sums of the residual stream.
UNNAMED = "residual sums"
WHAT = "size precision context_length part"


def build(rows: pd.DataFrame, other_stages: Mapping[str, pd.DataFrame]) -> Section:
    """Return the section of the profile stage."""
    measured = in_order(with_values(rows), [*CELL, "range", "rank"], ORDERS)
    measured = measured.assign(part=measured["range"].map(NAMES))
    kinds = measured[(measured["kind"] == "category") & measured["range"].isin(PASSES)]
    if kinds.empty:
        return Section(WORDS.say("no_captures"), for_course=[_forward_times(measured)])
    lead = _lead(kinds)
    of_capture, main = lead[CELL].to_dict(), lead[CELL[2:]].to_dict()
    kernels = measured[measured["kind"] == "kernel"]
    leading = kernels[(kernels["rank"] == 1) & kernels["range"].isin(PASSES[:2])]
    others = matching(kernels[kernels["category"] != MATMUL], lead[CELL[1:]].to_dict() | {"range": FORWARD})
    ends = _ends(measured[measured["profiler"] == lead["profiler"]])
    return Section(
        _answer(matching(kinds, of_capture), lead),
        [
            _by_model(matching(kinds, main | {"range": lead["range"]})),
            _shares(ends[ends["size"] == lead["size"]]),
            _kernels("kernels", matching(kernels, of_capture | {"range": lead["range"]}).head(MOST_KERNELS), what=""),
        ],
        for_course=[
            _forward_times(ends),
            _kernels("first_kernels", _ends(matching(leading, main)), across="part"),
            _kernels("other_kernels", others.groupby(CELL, sort=False).head(NAMED)),
            _attention(_ends(matching(measured, main | {"range": FORWARD}))),
            _layer(matching(measured, of_capture)),
        ],
    )


def _lead(kinds: pd.DataFrame) -> pd.Series:
    """Choose the fullest pass of the largest model in the lowest precision, at the longest context most models have."""
    for name, end in (("profiler", 0), ("range", -1)):
        kinds = kinds[kinds[name] == in_order(kinds, [name], ORDERS)[name].iloc[end]]
    sizes = kinds.groupby("context_length")["size"].nunique()
    kinds = kinds[kinds["context_length"] == sizes[sizes == sizes.max()].index.max()]
    return in_order(kinds, ["size", "precision"], ORDERS).iloc[-1]


def _ends(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep the smallest and the largest model, both at the shortest and the longest context."""
    for name in ("size", "context_length"):
        values = in_order(rows[[name]], [name], ORDERS)[name]
        rows = rows[rows[name].isin([*values.head(1), *values.tail(1)])]
    return rows


def _answer(kinds: pd.DataFrame, lead: pd.Series) -> str:
    products = kinds[kinds["category"] == MATMUL].set_index("range")["share_pct"]
    rest = kinds[(kinds["range"] == lead["range"]) & (kinds["category"] != MATMUL)]
    most = rest.loc[rest["share_pct"].idxmax()]
    of_pass, of_forward = (products.get(name, 0.0) for name in (lead["range"], FORWARD))
    return WORDS.say("answer", lead=lead, products=of_pass, forward=of_forward, next=most)


def _by_model(kinds: pd.DataFrame) -> Chart:
    kinds = kinds.assign(total_ms=kinds.groupby(CELL)["time_ms"].transform("sum"))
    most = kinds.groupby("category")["share_pct"].transform("max")
    kinds = kinds.assign(kind_of_work=kinds["category"].mask(most < RARE_PCT, OTHER))
    kinds = kinds.assign(label=written(kinds, "{size}, {precision} ({total_ms:ms})"))
    return _stack("kinds", kinds, Axis("share_pct", most=100), "category time_ms")


def _layer(rows: pd.DataFrame) -> Chart:
    """Stack the kernels of the middle layer's forward pass, one bar per part of the layer."""
    lines = [
        (path.rpartition("/")[2].replace("_", " ") or UNNAMED, category, microseconds / 1e3)
        for events in rows["events"].dropna()
        for _kernel, category, path, _stream, _start, microseconds in json.loads(events)
    ]
    drawn = pd.DataFrame(lines, columns=["label", "kind_of_work", "time_ms"])
    return _stack("layer", drawn, "time_ms")


def _stack(name: str, drawn: pd.DataFrame, x: str | Axis, hover: str = "") -> Chart:
    orders = {"label": drawn["label"].unique(), "kind_of_work": CATEGORIES}
    return WORDS.chart(name, in_order(drawn, [*orders], orders), "stack", x, "label", "kind_of_work", hover=hover)


def _kernels(name: str, kernels: pd.DataFrame, what: str = WHAT, across: str | None = None) -> Table:
    # Cut the middle: long names often differ only at the end.
    kernels = kernels.assign(short=kernels["kernel"].str.replace(LONG_NAME, "…", regex=True))
    return WORDS.table(name, kernels, f"{what} short:code category count time_ms share_pct", across=across)


def _forward_times(rows: pd.DataFrame) -> Table:
    timed = rows[(rows["kind"] == "time") & (rows["range"] == FORWARD)]
    host, span, busy = (timed[timed["clock"] == clock] for clock in ("host", "span", "busy"))
    span, busy = (each[[*CELL, "median_ms", "status"]] for each in (span, busy))
    both = host.merge(span, "left", CELL, suffixes=("", "_span")).merge(busy, "left", CELL, suffixes=("", "_busy"))
    off_pct = 100 * (both["median_ms_span"] / both["median_ms"] - 1)
    both = both.assign(off_pct=off_pct.where(both["status"] == "ok"))  # an unstable time would say nothing
    names = "size precision captured_by context_length median_ms median_ms_span median_ms_busy off_pct"
    return WORDS.table("forward_times", both, names, across="context_length")


def _shares(rows: pd.DataFrame) -> Table:
    kinds = rows[(rows["kind"] == "category") & rows["range"].isin(PASSES)]
    shares = kinds.pivot_table(index=WHAT.split(), columns="category", values="share_pct", sort=False)
    shares = shares.reindex(columns=SHOWN_KINDS).add_suffix("_share_pct").reset_index()
    return WORDS.table("shares", shares, " ".join(shares), across="part", kinds=" / ".join(SHOWN_KINDS))


def _attention(rows: pd.DataFrame) -> Table:
    """Tabulate attention's time in a forward pass: its products, mask, softmax and the rest."""
    phases = rows[rows["kind"] == "attention"].set_index(CELL)
    softmax, mask = (phases[phases["phase"] == phase] for phase in (SOFTMAX, MASK))
    found = phases[~phases["phase"].isin([SOFTMAX, MASK])].groupby(level=CELL, sort=False)
    found = found[["time_ms", "matmul_ms", "flops"]].sum()
    times, flops_times = softmax["time_ms"] / found["matmul_ms"], found["flops"] / softmax["flops"]
    found = found.assign(
        beside_ms=found["time_ms"] - found["matmul_ms"],
        mask_ms=mask["time_ms"],
        time_ms=softmax["time_ms"],
        flops_softmax=softmax["flops"],
        times=times,
        flops_times=flops_times,
        per_flop_times=times * flops_times,
    )
    names = "size precision context_length matmul_ms mask_ms beside_ms time_ms times flops_times per_flop_times"
    return WORDS.table("attention", found.reset_index(), names, only_filled=True)
