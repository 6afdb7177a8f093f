"""The flash section: ours beside PyTorch's and FlashAttention-4 at shapes of real models; one head for the course."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import pandas as pd

from pipeline.formulas.attention import Shape, forward_flops
from pipeline.report.chart import Axis, Chart, Limit
from pipeline.report.formats import count, data_size, intervals, ms, number, percent, significant, text, times
from pipeline.report.frame import in_order, known, with_figures
from pipeline.report.section import Change, Part, Section, say
from pipeline.report.table import NOTHING, OUTCOME_WORDS, Columns, Table
from pipeline.report.versus import FASTER, SLOWER, judge, side_by_side, versus
from pipeline.stages.flash.cell import (
    BOTH_PHASES,
    DTYPES,
    FA4,
    GROUP_AXIS,
    LEADERBOARD,
    OURS,
    PEERS,
    PHASES,
    THREE_TF32,
    TILES,
)

PROBLEM = ["dtype", "is_causal", "batch_size", "num_heads", GROUP_AXIS, "head_dim", "seq_len"]
SHAPE_HEAD = "batch×heads×length×head_dim"
WORDS = {
    "triton": "ours",
    **{impl: f"ours, tiles of {side}" for impl, side in TILES.items()},
    "tiled": "ours, in PyTorch",
    FA4: "FlashAttention-4",
    "sdpa_cudnn": "cuDNN",
    "sdpa_flash": "FlashAttention-2",
    "sdpa_efficient": "efficient",
    "sdpa": "SDPA",
    "flex": "flex",
    "compiled_eager": "plain, compiled",
    "eager": "plain",
}
ERRORS = {"output": "forward", "dq": "backward", "dk": "backward", "dv": "backward"}


def build(rows: pd.DataFrame, beside: Mapping[str, pd.DataFrame]) -> Section:
    """Return the section of the flash stage; beside: the rates of matrix products, of the stage ceilings."""
    rows = _named(rows)
    measured = set(with_figures(rows)["impl"])
    ours = next((name for name in OURS if name in measured), OURS[0])
    models, heads = rows[rows["num_heads"] > 1], rows[(rows["num_heads"] == 1) & rows["is_causal"]]
    products = _products(beside)
    torch_s, fa4_s = (_duel(models, ours, peers, products) for peers in (PEERS, [FA4]))
    grids = [_grid(group, ours) for _, group in heads.groupby("dtype", sort=False)]
    beside_torch = _shapes("shapes", "the fastest of PyTorch's", torch_s)
    beside_fa4, errors = _shapes("fa4", "FlashAttention-4", fa4_s), _errors(rows, ours)
    first: list[Part] = [_rates(models, ours, torch_s, products), beside_torch] if len(torch_s) else list(grids[:1])
    parts: list[Part] = [*first, beside_fa4 if len(fa4_s) else errors]
    course: list[Part] = [
        errors,
        _memory(heads, ours),
        _gains(heads, ours),
        _both_grids(grids),
        _leaderboard(rows, ours),
    ]
    return Section(
        _answer(torch_s, _duel(heads, ours, PEERS, products)),
        parts,
        _changes(models, ours, torch_s),
        for_course=[part for part in course if part.name not in {shown.name for shown in parts}],
    )


def _named(rows: pd.DataFrame) -> pd.DataFrame:
    """Sort problems by dtype, then by work, the largest first; add `shape`, a label, and `who`, a word."""
    shapes = [Shape(*each) for each in zip(*(rows[item.name] for item in fields(Shape)), strict=True)]
    rows = rows.assign(
        shape=[f"{dtype} {_label(shape)}" for dtype, shape in zip(rows["dtype"], shapes, strict=True)],
        who=rows["impl"].map(WORDS),
        work=[-forward_flops(shape) for shape in shapes],
    )
    return in_order(rows, ["dtype", "work", "shape", "impl"], {"dtype": DTYPES, "impl": list(WORDS)})


def _label(shape: Shape) -> str:
    """Name a problem: `2×32:8×8192×128`, of 32 heads that share 8 of keys; causal unless it says otherwise."""
    shared = f":{shape.num_kv_heads}" if shape.has_shared_keys else ""
    mask = "" if shape.is_causal else ", no mask"
    return f"{shape.batch_size}×{shape.num_heads}{shared}×{shape.seq_len}×{shape.head_dim}{mask}"


def _products(beside: Mapping[str, pd.DataFrame]) -> dict[str, float]:
    """Return the highest rate of a matrix product alone by dtype; of fp32 a third of TF32's, where that is its peak."""
    rates = known(beside.get("ceilings", pd.DataFrame()), "dtype", "tflops_per_s")
    return dict(with_figures(rates).groupby("dtype")["tflops_per_s"].max()) if len(rates) else {}


def _product(row: pd.Series, products: Mapping[str, float]) -> float:
    if row["peak_of"] == THREE_TF32:
        return products.get("tf32", math.nan) / 3
    return products.get(row["dtype"], math.nan)


def _duel(rows: pd.DataFrame, ours: str, peers: Sequence[str], products: Mapping[str, float]) -> pd.DataFrame:
    """Put ours beside the fastest of peers, forward + backward; add how lone calls and the forward pass compare."""
    both = versus(rows[rows["phase"] == BOTH_PHASES], PROBLEM, "impl", ours, peers)
    forward = versus(rows[rows["phase"] == "forward"], PROBLEM, "impl", ours, peers)
    forward = forward.assign(forward=[f"{times(row['ratio'])} {row['verdict']}" for _, row in forward.iterrows()])
    both = both.merge(forward[[*PROBLEM, "forward"]], "left", PROBLEM)
    share = [100 * row["tflops_per_s"] / _product(row, products) for _, row in both.iterrows()]
    alone = [_alone(row) for _, row in both.iterrows()]
    lone = zip(both["median_call_ms"], both["median_call_ms_peer"], alone, strict=True)
    lone_ms = [f"{number(mine)} / {number(theirs)}; {word}" if word else None for mine, theirs, word in lone]
    return both.assign(gain=intervals(both), product_pct=share, alone=alone, lone_ms=lone_ms)


def _alone(row: pd.Series) -> str | None:
    """Return the verdict on single calls with nothing queued; None where they were not timed."""
    sides = [
        {"status": "ok", **{f"{name}_ms": row[f"{name}_call_ms{suffix}"] for name in ("median", "q1", "q3")}}
        for suffix in ("_peer", "")
    ]
    return None if any(pd.isna(side["median_ms"]) for side in sides) else judge(*sides)["verdict"]


def _answer(models: pd.DataFrame, heads: pd.DataFrame) -> str:
    if models.empty and heads.empty:
        return say("Ours and PyTorch's were nowhere measured together.")
    if models.empty:
        row = heads.iloc[0]
        return say(
            "{dtype}, one causal head of {head_dim}, length {length}, forward + backward: {who} takes {ours} and "
            "{peer} {theirs} ({gain}, {verdict}).",
            dtype=row["dtype"],
            head_dim=row["head_dim"],
            length=count(row["seq_len"]),
            who=row["who"],
            ours=ms(row["median_ms"]),
            theirs=ms(row["median_ms_peer"]),
            peer=row["who_peer"],
            gain=row["gain"],
            verdict=row["verdict"],
        )
    here = models[models["dtype"] == models["dtype"].iloc[0]]
    return say(
        "{dtype}, forward + backward{queued}: ours is faster than the fastest of PyTorch's at {won} of {n} shapes of "
        "real models ({low} to {high} times as fast); called alone at {alone} of {lone}, and slower at {lost}. It "
        "reaches {rate} TFLOP/s.",
        queued=_queued(here),
        dtype=here["dtype"].iloc[0],
        won=(here["verdict"] == FASTER).sum(),
        n=len(here),
        low=f"{here['ratio'].min():.2f}",
        high=f"{here['ratio'].max():.2f}",
        alone=(here["alone"] == FASTER).sum(),
        lone=here["alone"].notna().sum(),
        lost=(here["alone"] == SLOWER).sum(),
        rate=number(here["tflops_per_s"].max()),
    )


def _shapes(name: str, other: str, duel: pd.DataFrame) -> Table:
    cards = {card for each in duel["cards"] for card in each.split(", ")}
    caption = (
        f"Forward + backward at shapes of real models ({SHAPE_HEAD}), ours beside {other}{_queued(duel)}; alone: one "
        f"call until its work is done. GPUs used: {len(cards)}; both times of a row or repeat are from one."
    )
    columns: Columns = [
        ("shape", "shape", text),
        ("ours, ms", "median_ms", number),
        (other, "who_peer", text),
        ("its ms", "median_ms_peer", number),
        ("times as fast (interval)", "gain", text),
        ("verdict", "verdict", text),
        ("alone: ours / other, ms; verdict", "lone_ms", text),
        ("forward pass: ours", "forward", text),
        ("ours, TFLOP/s", "tflops_per_s", number),
        ("share of a matrix product's rate", "product_pct", percent),
    ]
    return Table(name, caption, duel, columns, all_rows=True)


def _rates(models: pd.DataFrame, ours: str, duel: pd.DataFrame, products: Mapping[str, float]) -> Chart:
    """Draw the rates of ours, FlashAttention-4 and each shape's fastest of PyTorch's, in the first dtype."""
    here = duel[duel["dtype"] == duel["dtype"].iloc[0]]
    best = set(zip(here["shape"], here["impl_peer"], strict=True))
    rows = models[(models["phase"] == BOTH_PHASES) & (models["dtype"] == here["dtype"].iloc[0])]
    rows = with_figures(rows)
    drawn = [
        impl in (ours, FA4) or (shape, impl) in best for shape, impl in zip(rows["shape"], rows["impl"], strict=True)
    ]
    rows = rows[drawn]
    product = products.get(here["dtype"].iloc[0])
    return Chart(
        "rates",
        f"Attention forward + backward in {here['dtype'].iloc[0]}, {SHAPE_HEAD}: ours beside the fastest others",
        rows.assign(label=rows["tflops_per_s"].map(number), problem=rows["shape"].str.partition(" ")[2]),
        "bar",
        Axis("tflops_per_s", "TFLOP/s"),
        Axis("problem"),
        "who",
        label="label",
        limits=[Limit(product, "a matrix product alone")] if product else [],
        hover={"ms": "median_ms", "one call alone (ms)": "median_call_ms", "outcome": "status"},
    )


def _changes(models: pd.DataFrame, ours: str, duel: pd.DataFrame) -> list[Change]:
    """Put ours in the place of what SDPA picks by itself, at the shape measured most often."""
    if duel.empty:
        return []
    first = duel[duel["dtype"] == duel["dtype"].iloc[0]].sort_values("repeats", ascending=False, kind="stable").iloc[0]
    here = models[(models[PROBLEM] == first[PROBLEM]).all(axis=1)]
    found = versus(here[here["phase"] == BOTH_PHASES], PROBLEM, "impl", ours, [first["sdpa_choice"]])
    return [
        Change(
            "our attention kernels instead of SDPA's choice",
            f"attention alone, {row['shape']}, launches queued",
            f"{ms(row['median_ms_peer'])}, {row['who_peer']}",
            ms(row["median_ms"]),
            row.to_dict(),
        )
        for _, row in found.iterrows()
    ]


def _grid(heads: pd.DataFrame, ours: str) -> Table:
    """Write the assignment's table in one dtype: ours and plain attention, each phase, by width and length."""
    heads = heads.sort_values(["head_dim", "seq_len"], kind="stable")
    found = {
        phase: side_by_side(heads[heads["phase"] == phase], PROBLEM, "impl", ours, "eager").set_index(PROBLEM)
        for phase in PHASES
    }
    kept = ["status", "status_peer", "median_ms", "median_ms_peer", "verdict"]
    grid = pd.concat([each[kept].add_suffix(f"_{phase}") for phase, each in found.items()], axis=1)
    grid = grid.assign(gain=intervals(found[BOTH_PHASES])).reset_index()
    columns: Columns = [
        ("head_dim", "head_dim", count),
        ("length", "seq_len", count),
        *((f"ours, {word}, ms", f"median_ms_{phase}", number) for phase, word in _PHASE_WORDS),
        *((f"plain, {word}, ms", f"median_ms_peer_{phase}", number) for phase, word in _PHASE_WORDS),
        ("ours, both: times as fast (interval)", "gain", text),
        ("verdict", f"verdict_{BOTH_PHASES}", text),
    ]
    dtype = heads["dtype"].iloc[0]
    return Table(f"grid_{dtype}", f"One causal head in {dtype}{_queued(heads)}:", grid, columns, all_rows=True)


def _both_grids(grids: Sequence[Table]) -> Table:
    """Put the assignment's tables of all dtypes beside each other, at the widths and lengths that all of them have."""
    on, columns = ["head_dim", "seq_len"], [("head_dim", "head_dim", count), ("length", "seq_len", count)]
    both = pd.DataFrame(columns=on)
    for place, grid in enumerate(grids):
        dtype = grid.name.removeprefix("grid_")
        own = grid.rows[on].assign(**{f"gain_{dtype}": grid.rows["gain"]})
        for who, suffix in (("ours", ""), ("plain", "_peer")):
            own[f"{who}_{dtype}"] = [_three(row, suffix) for _, row in grid.rows.iterrows()]
        own[f"verdict_{dtype}"] = grid.rows[f"verdict_{BOTH_PHASES}"]
        both = both.merge(own, "inner" if place else "right", on)
        heads = {"ours": "ours", "plain": "plain", "gain": "times as fast, both (interval)", "verdict": "verdict"}
        columns += [(f"{dtype}: {head}", f"{name}_{dtype}", text) for name, head in heads.items()]
    widths = both.groupby("seq_len")["head_dim"].transform("nunique")
    both = both[widths == both["head_dim"].nunique()]
    queued = grids[0].caption.rstrip(":").partition(", ")[2] if grids else ""
    caption = f"One causal head{queued and ', ' + queued}: forward / backward / both, ms:"
    return Table("grid", caption, both, columns, all_rows=True)


def _three(row: pd.Series, suffix: str) -> str:
    """Write the times of all phases of a side, or what came of it."""
    values = [row[f"median_ms{suffix}_{phase}"] for phase in PHASES]
    outcomes = [OUTCOME_WORDS.get(row[f"status{suffix}_{phase}"], NOTHING) for phase in PHASES]
    if pd.isna(values).all() and len(set(outcomes)) == 1:
        return outcomes[0]
    found = zip(values, outcomes, strict=True)
    return " / ".join(outcome if pd.isna(value) else number(value) for value, outcome in found)


def _queued(rows: pd.DataFrame) -> str:
    """Say of device times that the host's part is left out."""
    return ", launches queued" if (rows["clock"] == "device").any() else ""


_PHASE_WORDS = (("forward", "forward"), ("backward", "backward"), (BOTH_PHASES, "both"))


def _gains(heads: pd.DataFrame, ours: str) -> Chart:
    both = versus(heads[heads["phase"] == BOTH_PHASES], PROBLEM, "impl", ours, ["eager"])
    both = both.sort_values("head_dim", kind="stable")
    return Chart(
        "gains",
        "How many times as fast as plain attention ours is, forward + backward, one causal head",
        both.assign(width="head_dim " + both["head_dim"].astype(str), status=both["verdict"].map(_shade)),
        "line",
        Axis("seq_len", "sequence length", log=True),
        Axis("ratio", "times as fast as plain", log=True),
        "width",
        panel="dtype",
        limits=[Limit(1.0, "as fast as plain")],
        hover={"verdict": "verdict", "ours (ms)": "median_ms", "plain (ms)": "median_ms_peer"},
    )


def _shade(verdict: str) -> str:
    """Return the outcome by which charts draw an undecided ratio hollow or faint."""
    return "unstable" if verdict == "undecided" else "ok"


def _errors(rows: pd.DataFrame, ours: str) -> Table:
    """Put the largest errors of ours beside plain attention's, over the problems at which both were checked."""
    found = []
    for dtype, group in rows.groupby("dtype", sort=False):
        row: dict[str, Any] = {"dtype": dtype}
        for what, phase in ERRORS.items():
            checked = known(group[group["phase"] == phase], f"{what}_rel_error")
            mine, plain = (checked[checked["impl"] == impl] for impl in (ours, "eager"))
            both = mine.merge(plain, on=PROBLEM, suffixes=("", "_peer"))[
                [f"{what}_rel_error", f"{what}_rel_error_peer"]
            ]
            row |= {"problems": len(both), **both.max()} if len(both) else {}
        found += [row] if len(row) > 1 else []
    columns: Columns = [("dtype", "dtype", text), ("problems", "problems", count)]
    for what in ERRORS:
        columns += [
            (f"{what}: ours", f"{what}_rel_error", _two_digits),
            ("plain", f"{what}_rel_error_peer", _two_digits),
        ]
    caption = "Largest relative errors (L2) against float64, over the problems that both solved:"
    return Table("errors", caption, pd.DataFrame(found), columns)


def _two_digits(value: float) -> str:
    return significant(value, 2)


def _memory(heads: pd.DataFrame, ours: str) -> Table:
    """Write what a call needs beside its inputs, in the first dtype and at its middle width."""
    here = heads[(heads["phase"] == BOTH_PHASES) & (heads["dtype"] == heads["dtype"].iloc[0])] if len(heads) else heads
    here = here[here["head_dim"] == (64 if 64 in set(here["head_dim"]) else here["head_dim"].max())]
    both = known(side_by_side(here, PROBLEM, "impl", ours, "eager").sort_values("seq_len"), "extra_bytes")
    columns: Columns = [
        ("dtype", "dtype", text),
        ("head_dim", "head_dim", count),
        ("length", "seq_len", count),
        ("ours", "extra_bytes", data_size),
        ("plain", "extra_bytes_peer", data_size),
    ]
    caption = "Peak memory of forward + backward beside its inputs, one causal head, ours / plain:"
    return Table("memory", caption, both, columns, all_rows=True, across="length")


def _leaderboard(rows: pd.DataFrame, ours: str) -> Table:
    """Write every implementation beside ours at the shape of the 2025 leaderboard."""
    here = rows[(rows[list(LEADERBOARD)] == pd.Series(LEADERBOARD)).all(axis=1) & (rows["phase"] == BOTH_PHASES)]
    found = versus(here, PROBLEM, "impl", list(WORDS), [ours])
    columns: Columns = [
        ("shape", "shape", text),
        ("with", "who", text),
        ("ms", "median_ms", number),
        ("one call alone, ms", "median_call_ms", number),
        ("TFLOP/s", "tflops_per_s", number),
        ("times as fast as ours (interval)", "gain", text),
        ("verdict", "verdict", text),
    ]
    caption = f"The leaderboard's shape, forward + backward{_queued(here)}:"
    return Table("leaderboard", caption, found.assign(gain=intervals(found)), columns)
