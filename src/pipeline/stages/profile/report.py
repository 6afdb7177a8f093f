"""The profile section: where the time of a step goes, by kind of kernel, by kernel, and inside attention."""

import json
import re
from collections.abc import Mapping
from typing import Any

import pandas as pd

from pipeline.formulas.parameters import BY_SIZE
from pipeline.instruments.profilers.kernel_categories import CATEGORIES
from pipeline.report.chart import Axis, Chart
from pipeline.report.formats import code, count, ms, number, percent, text, times
from pipeline.report.frame import alike, in_order, with_figures
from pipeline.report.section import Section, say
from pipeline.report.table import Columns, Table
from pipeline.stages.profile.cell import ATTENTION_PHASES, BACKWARD_BY_PART, PASSES

CELL = ["precision", "size", "context_length", "profiler"]
ORDERS = {
    "precision": ("fp32", "bf16"),
    "size": BY_SIZE,
    "profiler": ("auto", "nsys", "torch"),
    "range": PASSES,
    "category": CATEGORIES,
}
PASS_WORDS = {"inference": "forward only", "forward_backward": "forward and backward", "train_step": "whole step"}
FORWARD, STEP = PASSES[0], PASSES[-1]
MATMUL, OTHER = "matmul", "other"
RARE_PCT = 1.0  # a kind that is nowhere more is drawn as other
NAMED, MOST_KERNELS = 3, 6
# What cuBLAS writes behind the tile: ..._tilesize64x64x8_stage3_warpsize1x4x1_ffma_aligna4_alignc4_..._5x_cublas
BEHIND_TILE = re.compile(r"(_tilesize\d+(?:x\d+)*)_(\w*)")
# What launches kernels of a layer under no name of its own: the sums of the residual stream.
UNNAMED = "residual sums"
WHAT = (("model", "size", text), ("precision", "precision", text), ("context", "context_length", count))


def build(rows: pd.DataFrame, beside: Mapping[str, pd.DataFrame]) -> Section:
    """Return the section of the profile stage."""
    measured = in_order(with_figures(rows), CELL, ORDERS)
    kinds = measured[measured["kind"] == "category"]
    if kinds.empty:
        return Section("The passes were timed, but none was captured.", for_course=[_forward_times(measured)])
    kinds = kinds.assign(total_ms=kinds.groupby([*CELL, "range"])["time_ms"].transform("sum"))
    chosen, setting = _chosen(kinds), _setting(_chosen(kinds))
    lead, attention = alike(measured, setting), _attention(measured)
    main = {"context_length": setting["context_length"], "profiler": setting["profiler"]}
    of_model = main | {"size": setting["size"]}
    shown = kinds[kinds["range"] == chosen["range"].iloc[0]]
    kernels = lead[(lead["kind"] == "kernel") & (lead["range"] == chosen["range"].iloc[0])]
    return Section(
        _answer(alike(kinds, setting), shown["range"].iloc[0]),
        [
            _by_model(alike(shown, main)),
            _kernels("kernels", kernels.head(MOST_KERNELS), f"Most time in the {_words(kernels, setting)}:"),
        ],
        for_course=[
            _by_pass(alike(kinds, of_model)),
            _forward_times(measured[measured["size"].isin(_ends(kinds)["size"])]),
            _first_kernels(_ends(alike(measured, main))),
            _beside_products(alike(measured, of_model)),
            _products(_ends(kinds[kinds["profiler"] == setting["profiler"]])),
            _inside_attention("attention_all", _ends(alike(attention, main)), across="pass"),
            _layer(lead),
        ],
    )


def _chosen(kinds: pd.DataFrame) -> pd.DataFrame:
    """Keep the widest pass of the profiler chosen here, at the longest context that most models have."""
    by = next(name for name in ORDERS["profiler"] if (kinds["profiler"] == name).any())
    kinds = kinds[kinds["profiler"] == by]
    widest = next(name for name in [*reversed(PASSES), *kinds["range"]] if (kinds["range"] == name).any())
    kinds = kinds[kinds["range"] == widest]
    sizes = kinds.groupby("context_length")["size"].nunique()
    return kinds[kinds["context_length"] == sizes[sizes == sizes.max()].index.max()]


def _ends(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep the smallest and the largest model, both at the shortest and the longest context."""
    for name in ("size", "context_length"):
        values = in_order(rows[[name]], [name], ORDERS)[name]
        rows = rows[rows[name].isin([*values.head(1), *values.tail(1)])]
    return rows


def _setting(chosen: pd.DataFrame) -> dict[str, Any]:
    """Choose the capture to speak of: the largest model, in the lowest precision."""
    return in_order(chosen, ["size", "precision"], ORDERS)[CELL].iloc[-1].to_dict()


def _words(rows: pd.DataFrame, setting: Mapping[str, Any]) -> str:
    path = PASS_WORDS.get(rows["range"].iloc[0], "") if len(rows) else ""
    return f"{path} of {setting['size']}, {setting['precision']}, context {setting['context_length']:.0f}"


def _answer(kinds: pd.DataFrame, path: str) -> str:
    """Say what the products take of the widest pass and of the forward pass, and which kind comes next."""
    shares = kinds.pivot_table(index="category", columns="range", values="share_pct", aggfunc="sum").fillna(0.0)
    shares.loc[MATMUL] = shares.loc[MATMUL] if MATMUL in shares.index else 0.0
    others = shares[path].drop(MATMUL)
    first = kinds.iloc[0]
    return say(
        "{size} in {precision} with context {context}: matrix products take {products} of a {path}'s time in kernels "
        "and {forward} of the forward pass alone; of the rest {kind} takes most, {share}.",
        size=first["size"],
        precision=first["precision"],
        context=count(first["context_length"]),
        path=PASS_WORDS.get(path, path),
        products=percent(shares.loc[MATMUL, path]),
        forward=percent(shares.loc[MATMUL, FORWARD]) if FORWARD in shares else "an unknown part",
        kind=others.idxmax() if len(others) else "nothing",
        share=percent(others.max() if len(others) else 0.0),
    )


def _by_model(kinds: pd.DataFrame) -> Chart:
    """Stack the shares of the kinds of kernels, a bar a model and precision with the time of all."""
    labels = [f"{row['size']}, {row['precision']} ({ms(row['total_ms'])})" for _, row in kinds.iterrows()]
    path = PASS_WORDS.get(kinds["range"].iloc[0], "")
    title = f"Where the time of a {path} goes, at context {kinds['context_length'].iloc[0]:.0f}"
    return _stack("kinds", title, kinds.assign(label=labels), Axis("share_pct", "share of the time in kernels (%)"))


def _by_pass(kinds: pd.DataFrame) -> Chart:
    """Stack the times of the kinds of kernels of one model, a bar a pass and precision."""
    kinds = in_order(kinds[kinds["range"].isin(PASSES)], ["precision", "range"], ORDERS)
    labels = kinds["precision"] + ", " + kinds["range"].map(PASS_WORDS)
    title = f"{kinds['size'].iloc[0]} by pass, at context {kinds['context_length'].iloc[0]:.0f}" if len(kinds) else ""
    return _stack("passes", title, kinds.assign(label=labels), Axis("time_ms", "time in kernels (ms)"))


def _stack(name: str, title: str, kinds: pd.DataFrame, axis: Axis) -> Chart:
    most = kinds.groupby("category")["share_pct"].transform("max")
    kinds = kinds.assign(kind_of_work=kinds["category"].mask(most < RARE_PCT, OTHER))
    place = kinds["kind_of_work"].map({each: place for place, each in enumerate([*CATEGORIES, OTHER])})
    bars = kinds["label"].map({each: place for place, each in enumerate(dict.fromkeys(kinds["label"]))})
    drawn = kinds.assign(place=place, bar=bars).sort_values(["bar", "place"], kind="stable")
    hover = {"kind": "category", "share (%)": "share_pct", "ms": "time_ms"}
    return Chart(name, title, drawn, "stack", axis, Axis("label"), "kind_of_work", hover=hover)


def _kernels(name: str, kernels: pd.DataFrame, caption: str) -> Table:
    shown = kernels.assign(short=kernels["kernel"].map(_short, na_action="ignore"))
    several = ["size", "precision", "range"]
    heads = {"size": "model", "precision": "precision", "range": "pass"}
    varied = [(heads[each], each, text) for each in several if shown[each].nunique() > 1]
    columns: Columns = [
        *varied,
        ("kernel", "short", code),
        ("kind", "category", text),
        ("calls", "count", count),
        ("time, ms", "time_ms", number),
        ("share", "share_pct", percent),
    ]
    across = "pass" if "range" in {column for _, column, _ in varied} else None
    shown = shown.assign(range=shown["range"].replace(PASS_WORDS))
    return Table(name, caption, shown, columns, all_rows=True, across=across)


def _short(kernel: str) -> str:
    """Cut a name of cuBLAS behind the tile's size; that a product is split along k stays said."""
    cut = BEHIND_TILE.sub(lambda found: found[1] + ("_split_k" if "split_k" in found[2] else ""), kernel)
    return cut if len(cut) <= 64 else cut[:63] + "…"


def _attention(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a row a capture and direction: the time of attention's products, of its softmax, and of all else in it."""
    scores, mask, softmax, final = ATTENTION_PHASES
    phases = rows[rows["kind"] == "attention"]
    wide = phases.pivot_table(index=[*CELL, "range"], columns="phase", values=["time_ms", "matmul_ms", "flops"])
    wide = wide.reindex(columns=pd.MultiIndex.from_product([["time_ms", "matmul_ms", "flops"], ATTENTION_PHASES]))
    products = wide["matmul_ms"][scores] + wide["matmul_ms"][final]
    found = pd.DataFrame(
        {
            "products_ms": products,
            "softmax_ms": wide["time_ms"][softmax],
            "mask_ms": wide["time_ms"][mask].fillna(0),
            "beside_ms": wide["time_ms"][scores] + wide["time_ms"][final] - products,
            "times": wide["time_ms"][softmax] / products,
            "flops_times": (wide["flops"][scores] + wide["flops"][final]) / wide["flops"][softmax],
        }
    ).reset_index()
    directions = {FORWARD: "forward", BACKWARD_BY_PART: "backward"}
    found = found[found["range"].isin(directions)].dropna()
    return in_order(
        found.assign(direction=found["range"].map(directions)),
        [*CELL, "direction"],
        ORDERS | {"direction": ("forward", "backward")},
    )


def _inside_attention(name: str, attention: pd.DataFrame, across: str | None = None) -> Table:
    columns = [
        *WHAT,
        ("pass", "direction", text),
        ("two products, ms", "products_ms", number),
        ("scale, casts, copies, ms", "beside_ms", number),
        ("mask, ms", "mask_ms", number),
        ("softmax, ms", "softmax_ms", number),
        ("softmax's time over the products'", "times", times),
        ("products' FLOPs over softmax's", "flops_times", times),
    ]
    caption = "Inside plain attention, all layers together" + (
        ": ms of the two products / of scale, casts and copies / of the mask / of softmax / softmax's time over that "
        "of the products / the products' FLOPs over those of softmax"
        if across
        else ""
    )
    return Table(name, f"{caption}:", attention, columns, all_rows=True, across=across)


def _forward_times(rows: pd.DataFrame) -> Table:
    """Put the forward pass by the host clock, without a profiler, beside the capture's."""
    timed = rows[(rows["kind"] == "time") & (rows["range"] == FORWARD)]
    wide = timed.pivot_table(index=CELL, columns="clock", values="median_ms", sort=False)
    wide = wide.reindex(columns=["host", "span", "busy"]).dropna(subset=["host"]).reset_index()
    status = timed[timed["clock"] == "host"].set_index(CELL)["status"]
    wide = wide.assign(off_pct=100 * (wide["span"] / wide["host"] - 1))
    wide = wide.assign(status_host=status.reindex(pd.MultiIndex.from_frame(wide[CELL])).to_numpy())
    columns = [
        *WHAT[:2],
        ("profiler", "profiler", text),
        WHAT[2],
        ("host clock, ms", "median_ms_host", number),
        ("capture: first to last kernel, ms", "span", number),
        ("kernels run for, ms", "busy", number),
        ("capture beside host", "off_pct", lambda share: f"{share:+.1f}%"),
    ]
    caption = (
        "A forward pass in ms by the host clock / in the capture, first to last kernel / while kernels ran / how much "
        "longer the capture is:"
    )
    shown = in_order(wide.rename(columns={"host": "median_ms_host"}), CELL, ORDERS)
    return Table("forward_times", caption, shown, columns, all_rows=True, across="context")


def _first_kernels(rows: pd.DataFrame) -> Table:
    """Name the kernel with most time in the forward pass, and in forward and backward."""
    first = rows[(rows["kind"] == "kernel") & rows["range"].isin(PASSES[:2]) & (rows["rank"] == 1)]
    return _kernels("first_kernels", first, "The kernel with the most time / kind / calls / ms / share:")


def _beside_products(rows: pd.DataFrame) -> Table:
    """Name the kernels of the forward pass with most time that are no products."""
    others = rows[(rows["kind"] == "kernel") & (rows["range"] == FORWARD) & (rows["category"] != MATMUL)]
    first = in_order(others, [*CELL, "rank"], ORDERS).groupby(CELL, sort=False).head(NAMED)
    return _kernels("other_kernels", first, "Kernels of the forward pass other than products, those with most time:")


def _products(kinds: pd.DataFrame) -> Table:
    """Write the share of the products by pass, and that of the optimizer in a whole step."""
    wide = kinds[kinds["category"] == MATMUL].pivot_table(index=CELL, columns="range", values="share_pct", sort=False)
    wide = wide.reindex(columns=list(PASSES))
    step = kinds[kinds["range"] == STEP].pivot_table(index=CELL, columns="category", values="share_pct", sort=False)
    step = step.reindex(index=wide.index, columns=["optimizer", "elementwise", "copy"])
    columns = [
        *WHAT,
        *((f"products, {PASS_WORDS[name]}", name, percent) for name in PASSES),
        *((f"{name}, whole step", name, percent) for name in step),
    ]
    both = in_order(wide.join(step).reset_index(), CELL, ORDERS)
    caption = (
        "Share of the time in kernels: products in the forward pass / in forward and backward / in a whole step / "
        "optimizer in a whole step / elementwise / copies:"
    )
    return Table("products", caption, both, columns, all_rows=True, across="context")


def _layer(rows: pd.DataFrame) -> Chart:
    """Stack the kernels of the middle layer's forward pass, a bar a part of the layer."""
    events = [event for each in rows["events"].dropna() for event in json.loads(each)]
    lines = [
        {
            "label": path.rpartition("/")[2].replace("_", " ") or UNNAMED,
            "kernel": kernel,
            "category": category,
            "share_pct": 100.0,
            "time_ms": microseconds / 1e3,
        }
        for kernel, category, path, _stream, _start, microseconds in events
    ]
    drawn = pd.DataFrame(lines, columns=["label", "kernel", "category", "share_pct", "time_ms"])
    return _stack("layer", "One layer's forward pass by its parts", drawn, Axis("time_ms", "time in kernels (ms)"))
