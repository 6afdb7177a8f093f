"""The profile section: where the time of a step goes, by kind of kernel, by kernel, and inside attention."""

import json
from collections.abc import Mapping

import pandas as pd

from pipeline.formulas.parameters import BY_SIZE
from pipeline.instruments.profilers.kernel_categories import CATEGORIES
from pipeline.report.chart import Axis, Chart
from pipeline.report.formats import code, written
from pipeline.report.frame import alike, in_order, with_figures
from pipeline.report.section import Section, say
from pipeline.report.table import Table, filled, named
from pipeline.stages.profile.cell import ATTENTION_PHASES, BACKWARD_BY_PART, PASSES

CELL = ["precision", "size", "context_length", "profiler"]
ORDERS = {
    "precision": ("fp32", "bf16"),
    "size": BY_SIZE,
    "profiler": ("auto", "nsys", "torch"),
    "range": (*PASSES, BACKWARD_BY_PART),
    "category": CATEGORIES,
}
FORWARD = PASSES[0]
WORDS = dict(zip(PASSES, ("forward only", "forward and backward", "whole step"), strict=True))
DIRECTIONS = {FORWARD: "forward", BACKWARD_BY_PART: "backward"}
_, MASK, SOFTMAX, _ = ATTENTION_PHASES
MATMUL, OTHER = "matmul", "other"
TOLD_KINDS = (MATMUL, "softmax", "elementwise", "copy", "optimizer")
RARE_PCT = 1.0  # a kind that is nowhere more is drawn as other
NAMED, MOST_KERNELS, LONGEST_NAME = 2, 3, 64
# What launches kernels of a layer under no name of its own: the sums of the residual stream.
UNNAMED = "residual sums"
FIRST = "The kernel with the most time / its kind / calls / ms / share:"
WHAT = "size precision context_length part"


def build(rows: pd.DataFrame, beside: Mapping[str, pd.DataFrame]) -> Section:
    """Return the section of the profile stage."""
    measured = in_order(with_figures(rows), [*CELL, "range", "rank"], ORDERS)
    measured = measured.assign(part=measured["range"].map(WORDS))
    kinds = measured[(measured["kind"] == "category") & measured["range"].isin(PASSES)]
    if kinds.empty:
        return Section("The passes were timed, but none was captured.", for_course=[_forward_times(measured)])
    lead = _lead(kinds)
    of_capture, of_model, main = ({name: lead[name] for name in names} for names in (CELL, CELL[1:], CELL[2:]))
    widest = kinds[kinds["range"] == lead["range"]]
    kernels = measured[measured["kind"] == "kernel"]
    most = alike(kernels, of_capture | {"range": lead["range"]}).head(MOST_KERNELS)
    leading = kernels[(kernels["rank"] == 1) & kernels["range"].isin(PASSES[:2])]
    others = alike(kernels, of_model | {"range": FORWARD})
    others = others[others["category"] != MATMUL].groupby(CELL, sort=False).head(NAMED)
    ends = _ends(measured[measured["profiler"] == lead["profiler"]])
    return Section(
        _answer(alike(kinds, of_capture), lead),
        [_by_model(alike(widest, main)), _kernels("kernels", most, "Kernels with the most time:")],
        for_course=[
            _forward_times(ends),
            _kernels("first_kernels", _ends(alike(leading, main)), FIRST, across="pass"),
            _kernels("other_kernels", others, "Kernels other than products with the most time:"),
            _shares(ends),
            _attention(_ends(alike(measured, main))),
            _layer(alike(measured, of_capture)),
        ],
    )


def _lead(kinds: pd.DataFrame) -> pd.Series:
    """Choose the widest pass of the largest model in the lowest precision, at the longest context of most models."""
    for name, best in (("profiler", min), ("range", max)):
        place = kinds[name].map(ORDERS[name].index)
        kinds = kinds[place == best(place)]
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
    return say(
        "{lead[size]} in {lead[precision]} with context {lead[context_length]:count}: matrix products take "
        "{products:percent} of a {lead[part]}'s time in kernels and {forward:percent} of the forward pass alone; of "
        "the rest {next[category]} takes most, {next[share_pct]:percent}.",
        lead=lead,
        products=products.get(lead["range"], 0.0),
        forward=products.get(FORWARD, 0.0),
        next=rest.loc[rest["share_pct"].idxmax()],
    )


def _by_model(kinds: pd.DataFrame) -> Chart:
    kinds = kinds.assign(total_ms=kinds.groupby(CELL)["time_ms"].transform("sum"))
    title = "Where the time of a {part} goes, at context {context_length}".format(**kinds.iloc[0])
    axis = Axis("share_pct", "share of the time in kernels (%)")
    return _stack("kinds", title, kinds.assign(label=written(kinds, "{size}, {precision} ({total_ms:ms})")), axis)


def _layer(rows: pd.DataFrame) -> Chart:
    """Stack the kernels of the middle layer's forward pass, a bar a part of the layer."""
    lines = [
        (path.rpartition("/")[2].replace("_", " ") or UNNAMED, kernel, category, 100.0, microseconds / 1e3)
        for events in rows["events"].dropna()
        for kernel, category, path, _stream, _start, microseconds in json.loads(events)
    ]
    drawn = pd.DataFrame(lines, columns=["label", "kernel", "category", "share_pct", "time_ms"])
    return _stack("layer", "One layer's forward pass by its parts", drawn, Axis("time_ms", "time in kernels (ms)"))


def _stack(name: str, title: str, kinds: pd.DataFrame, axis: Axis) -> Chart:
    most = kinds.groupby("category")["share_pct"].transform("max")
    drawn = kinds.assign(kind_of_work=kinds["category"].mask(most < RARE_PCT, OTHER))
    orders = {"label": list(dict.fromkeys(drawn["label"])), "kind_of_work": (*CATEGORIES, OTHER)}
    drawn = in_order(drawn, ["label", "kind_of_work"], orders)
    hover = {"kind": "category", "share (%)": "share_pct", "ms": "time_ms"}
    return Chart(name, title, drawn, "stack", axis, Axis("label"), "kind_of_work", hover=hover)


def _kernels(name: str, kernels: pd.DataFrame, caption: str, across: str | None = None) -> Table:
    kernels = kernels.assign(short=kernels["kernel"].str.replace(f"(?<=^.{{{LONGEST_NAME}}}).+", "…", regex=True))
    what, rest = (
        named(kernels, WHAT, part="pass"),
        named(kernels, "category count time_ms share_pct", category="kind", count="calls"),
    )
    columns = [*what, ("kernel", "short", code), *rest]
    return Table(name, caption, kernels, columns, all_rows=True, across=across)


def _forward_times(rows: pd.DataFrame) -> Table:
    """Put the forward pass by the host clock, without a profiler, beside the capture's."""
    timed = rows.loc[(rows["kind"] == "time") & (rows["range"] == FORWARD), [*CELL, "clock", "median_ms", "status"]]
    host, span, busy = (timed[timed["clock"] == clock] for clock in ("host", "span", "busy"))
    both = host.merge(span, "left", CELL, suffixes=("", "_span")).merge(busy, "left", CELL, suffixes=("", "_busy"))
    both = both.assign(off_pct=100 * (both["median_ms_span"] / both["median_ms"] - 1))
    names = "size precision context_length profiler median_ms median_ms_span median_ms_busy off_pct"
    heads = {"median_ms": "host clock, ms", "median_ms_span": "capture: first to last kernel, ms"}
    columns = named(both, names, **heads, median_ms_busy="kernels run for, ms", off_pct="capture longer by")
    return Table("forward_times", "A forward pass without a profiler and captured:", both, columns, all_rows=True)


def _shares(rows: pd.DataFrame) -> Table:
    """Write the shares of the kinds of kernels that the course asks for, by pass."""
    kinds = rows[(rows["kind"] == "category") & rows["range"].isin(PASSES) & rows["category"].isin(TOLD_KINDS)]
    kinds = in_order(kinds, [*CELL, "range", "category"], ORDERS)
    shares = kinds.pivot_table(index=[*CELL[:-1], "part"], columns="category", values="share_pct", sort=False)
    shares = shares.reindex(columns=TOLD_KINDS).add_suffix("_share_pct").reset_index()
    columns = named(shares, f"{CELL[1]} {CELL[0]} {CELL[2]} part {' '.join(shares.columns[4:])}", part="")
    caption = f"Shares of the time in kernels, {' / '.join(TOLD_KINDS)}:"
    return Table("shares", caption, shares, columns, all_rows=True, across="")


def _attention(rows: pd.DataFrame) -> Table:
    """Write for both passes the time of attention's products, of its mask, of its softmax, and of all else in it."""
    phases = rows[(rows["kind"] == "attention") & rows["range"].isin(DIRECTIONS)]
    phases = phases.assign(part=phases["range"].map(DIRECTIONS), beside_ms=phases["time_ms"] - phases["matmul_ms"])
    on = [*CELL, "part"]
    softmax, mask = (phases[phases["phase"] == phase] for phase in (SOFTMAX, MASK))
    products = phases[~phases["phase"].isin([SOFTMAX, MASK])].groupby(on, sort=False)
    products = products[["matmul_ms", "beside_ms", "flops"]].sum().reset_index()
    found = products.merge(softmax[[*on, "time_ms", "flops"]], on=on, suffixes=("", "_softmax"))
    found = found.merge(mask[[*on, "time_ms"]].rename(columns={"time_ms": "mask_ms"}), "left", on)
    found["times"] = found["time_ms"] / found["matmul_ms"]
    found["flops_times"] = found["flops"] / found["flops_softmax"]
    heads = {
        "matmul_ms": "two products, ms",
        "mask_ms": "mask, ms",
        "beside_ms": "all else, ms",
        "time_ms": "softmax, ms",
        "times": "softmax's time over the products'",
        "flops_times": "products' FLOPs over softmax's",
    }
    columns = filled(found, named(found, f"{WHAT} {' '.join(heads)}", **heads, part=""))
    told = " / ".join(head for head, name, _ in columns if name in heads)
    caption = f"Inside plain attention, all layers together: {told}:"
    return Table("attention", caption, found, columns, all_rows=True, across="")
