"""The flash section: ours beside PyTorch's and FlashAttention-4 at shapes of real models; one head for the course."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields

import pandas as pd

from pipeline.formulas.attention import Shape, forward_flops
from pipeline.report.chart import Axis, Chart, Limit
from pipeline.report.formats import written
from pipeline.report.frame import alike, in_order, known, with_figures
from pipeline.report.section import Change, Section, say
from pipeline.report.table import Table, named
from pipeline.report.versus import FASTER, SLOWER, judge, peer_of, shaded, side_by_side, versus
from pipeline.stages.flash.cell import (
    BOTH_PHASES,
    DTYPES,
    FA4,
    LEADERBOARD,
    OURS,
    PEERS,
    PHASES,
    THREE_TF32,
    TILES,
    Cell,
)

PROBLEM = [item.name for item in fields(Cell) if item.name != "repeat"]
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
ERRORS = {f"{what}_rel_error": what for what in ("output", "dq", "dk", "dv")}


def build(rows: pd.DataFrame, beside: Mapping[str, pd.DataFrame]) -> Section:
    """Return the section of the flash stage; beside: the rates of matrix products, of the stage ceilings."""
    rows = _named(rows, beside)
    measured = set(with_figures(rows)["impl"])
    ours = next((name for name in OURS if name in measured), OURS[0])
    models, heads = rows[rows["num_heads"] > 1], rows[(rows["num_heads"] == 1) & rows["is_causal"]]
    torch_s, fa4_s, heads_s = _duel(models, ours, PEERS), _duel(models, ours, [FA4]), _duel(heads, ours, PEERS)
    plain_s = side_by_side(heads, [*PROBLEM, "phase"], "impl", ours, "eager")
    queued = ", launches queued" if (rows["clock"] == "device").any() else ""
    errors = _errors(rows, ours)
    return Section(
        _answer(torch_s, heads_s, queued) + _exact(errors),
        [_rates(models, ours, torch_s), _shapes(torch_s, fa4_s, queued), _gains(plain_s)],
        _changes(models, ours, torch_s, queued),
        for_course=[
            _errors_table(errors),
            _memory(heads, ours),
            _grid(plain_s, queued),
            _leaderboard(rows, ours, queued),
        ],
    )


def _named(rows: pd.DataFrame, beside: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Sort problems by dtype, then by work; add labels and a matrix product's rate, of fp32 a third of TF32's."""
    shapes = [Shape(*each) for each in zip(*(rows[item.name] for item in fields(Shape)), strict=True)]
    products = beside.get("ceilings", pd.DataFrame(columns=["dtype", "status", "tflops_per_s"]))
    rates = dict(with_figures(products).groupby("dtype")["tflops_per_s"].max())
    product = rows["dtype"].map(rates).mask(rows["peak_of"] == THREE_TF32, rates.get("tf32", math.nan) / 3)
    rows = rows.assign(
        shape=rows["dtype"] + [f" {_label(shape)}" for shape in shapes],
        who=rows["impl"].map(WORDS),
        work=[-forward_flops(shape) for shape in shapes],
        product_tflops_per_s=product,
        product_pct=100 * rows["tflops_per_s"] / product.astype(float),
    )
    return in_order(rows, ["dtype", "work", "shape", "impl"], {"dtype": DTYPES, "impl": list(WORDS)})


def _label(shape: Shape) -> str:
    """Name a problem: `2×32:8×8192×128`, of 32 heads that share 8 of keys; causal unless it says otherwise."""
    shared = f":{shape.num_kv_heads}" if shape.has_shared_keys else ""
    mask = "" if shape.is_causal else ", no mask"
    return f"{shape.batch_size}×{shape.num_heads}{shared}×{shape.seq_len}×{shape.head_dim}{mask}"


def _duel(rows: pd.DataFrame, ours: str, peers: Sequence[str]) -> pd.DataFrame:
    """Put ours beside the fastest of peers, forward + backward; add how lone calls and the forward pass compare."""
    both, forward = (
        versus(rows[rows["phase"] == phase], PROBLEM, "impl", ours, peers) for phase in (BOTH_PHASES, "forward")
    )
    forward = forward.assign(forward=written(forward, "{ratio:times} {verdict}"))
    both = both.merge(forward[[*PROBLEM, "forward"]], "left", PROBLEM)
    calls = known(both, "median_call_ms", "median_call_ms_peer")
    alone = {place: judge(_call(row, "_peer"), _call(row, ""))["verdict"] for place, row in calls.iterrows()}
    both = both.assign(alone=pd.Series(alone, dtype=object))
    return both.assign(lone_ms=written(both, "{median_call_ms:number} / {median_call_ms_peer:number}; {alone}"))


def _call(row: pd.Series, suffix: str) -> dict[str, object]:
    """Return the times of single calls with nothing queued, as `judge` takes them."""
    return {"status": "ok", **{f"{name}_ms": row[f"{name}_call_ms{suffix}"] for name in ("median", "q1", "q3")}}


def _answer(models: pd.DataFrame, heads: pd.DataFrame, queued: str) -> str:
    if models.empty and heads.empty:
        return say("Ours and PyTorch's were nowhere measured together.")
    if models.empty:
        return say(
            "{dtype}, one causal head of {head_dim}, length {seq_len:count}, forward + backward: {who} takes "
            "{median_ms:ms} and {who_peer} {median_ms_peer:ms} ({gain}, {verdict}).",
            **heads.iloc[0],
        )
    here = models[models["dtype"] == models["dtype"].iloc[0]]
    return say(
        "{dtype}, forward + backward{queued}: ours is faster than the fastest of PyTorch's at {won} of {n} shapes of "
        "real models ({low:times} to {high:times} as fast); called alone at {alone} of {lone}, and slower at {lost}. "
        "It reaches {rate:number} TFLOP/s.",
        queued=queued,
        dtype=here["dtype"].iloc[0],
        won=(here["verdict"] == FASTER).sum(),
        n=len(here),
        low=here["ratio"].min(),
        high=here["ratio"].max(),
        alone=(here["alone"] == FASTER).sum(),
        lone=here["alone"].notna().sum(),
        lost=(here["alone"] == SLOWER).sum(),
        rate=here["tflops_per_s"].max(),
    )


def _shapes(torch_s: pd.DataFrame, fa4_s: pd.DataFrame, queued: str) -> Table:
    duel = pd.concat([torch_s, fa4_s])
    cards = {card for each in duel["cards"] for card in each.split(", ")}
    caption = (
        f"Forward + backward at shapes of real models ({SHAPE_HEAD}), ours beside the fastest of PyTorch's and "
        f"FlashAttention-4{queued}; alone: one call until its work is done. GPUs used: {len(cards)}; both times of a "
        "row or repeat are from one."
    )
    duel = in_order(duel, ["dtype", "work", "shape"], {"dtype": DTYPES})
    names = "shape median_ms who_peer median_ms_peer gain verdict lone_ms forward tflops_per_s product_pct"
    heads = {"median_ms": "ours, ms", "lone_ms": "alone: ours / other, ms; verdict", "forward": "forward pass: ours"}
    columns = named(duel, names, **heads, product_pct="share of a matrix product's rate")
    return Table("shapes", caption, duel, columns, all_rows=True)


def _rates(models: pd.DataFrame, ours: str, duel: pd.DataFrame) -> Chart:
    """Draw the rates of ours, FlashAttention-4 and each shape's fastest of PyTorch's, in the first dtype."""
    here = duel[duel["dtype"].isin(duel["dtype"].head(1))]
    rows = with_figures(models[(models["phase"] == BOTH_PHASES) & models["dtype"].isin(here["dtype"])])
    best = (rows["shape"] + rows["impl"]).isin(here["shape"] + here["impl_peer"])
    rows = rows[best | rows["impl"].isin([ours, FA4])]
    return Chart(
        "rates",
        f"Attention forward + backward, {SHAPE_HEAD}: ours beside the fastest others",
        rows.assign(label=written(rows, "{tflops_per_s:number}")),
        "bar",
        Axis("tflops_per_s", "TFLOP/s"),
        Axis("shape"),
        "who",
        label="label",
        limits=[Limit(rate, "a matrix product alone") for rate in here["product_tflops_per_s"].dropna().unique()],
        hover={"ms": "median_ms", "one call alone (ms)": "median_call_ms", "outcome": "status"},
    )


def _changes(models: pd.DataFrame, ours: str, duel: pd.DataFrame, queued: str) -> list[Change]:
    """Put ours in the place of what SDPA picks by itself, at the shape of the first dtype measured most often."""
    first = duel[duel["dtype"].isin(duel["dtype"].head(1))].nlargest(1, "repeats")
    here = models[models["phase"] == BOTH_PHASES].merge(first[PROBLEM])
    return [
        Change.between(
            "our attention kernels instead of SDPA's choice",
            f"attention alone, {row['shape']}{queued}, beside {row['who_peer']}",
            peer_of(row),
            row,
            "extra_bytes",
        )
        for _, row in versus(here, PROBLEM, "impl", ours, list(first["sdpa_choice"])).iterrows()
    ]


def _grid(duel: pd.DataFrame, queued: str) -> Table:
    """Write the assignment's table, ours and plain attention, at a middle and the longest length that all lanes have.

    A lane: a data type and width.
    """
    lanes = duel["dtype"] + " " + duel["head_dim"].astype(str)
    duel = duel[lanes.groupby(duel["seq_len"]).transform("nunique") == lanes.nunique()]
    lengths = sorted(duel["seq_len"].unique())
    duel = duel[duel["seq_len"].isin([*lengths[-1:], *lengths[: len(lengths) // 2][-1:]])]
    duel = in_order(duel, ["dtype", "seq_len", "phase", "head_dim"], {"dtype": DTYPES, "phase": PHASES})
    caption = f"One causal head{queued}: ours, ms / plain, ms / times as fast (interval) / verdict:"
    duel = duel.assign(part=duel["phase"].replace({BOTH_PHASES: "both"}))
    columns = named(duel, "dtype seq_len part head_dim median_ms median_ms_peer gain verdict", part="pass")
    return Table("grid", caption, duel, columns, all_rows=True, across="head dim")


def _gains(duel: pd.DataFrame) -> Chart:
    both = shaded(known(duel[duel["phase"] == BOTH_PHASES], "ratio")).sort_values("head_dim", kind="stable")
    return Chart(
        "gains",
        "How many times as fast as plain attention ours is, forward + backward, one causal head",
        both.assign(width=written(both, "head_dim {head_dim}")),
        "line",
        Axis("seq_len", "sequence length", log=True),
        Axis("ratio", "times as fast as plain", log=True),
        "width",
        panel="dtype",
        limits=[Limit(1.0, "as fast as plain")],
        hover={"verdict": "verdict", "ours (ms)": "median_ms", "plain (ms)": "median_ms_peer"},
    )


def _errors(rows: pd.DataFrame, ours: str) -> pd.DataFrame:
    """Put the largest errors of ours beside plain attention's, over the problems at which both were checked."""
    on = [*PROBLEM, "phase", "what"]
    checked = rows.rename(columns=ERRORS).melt([*on[:-1], "impl"], ERRORS.values(), "what", "error").dropna()
    mine, plain = (checked[checked["impl"] == impl] for impl in (ours, "eager"))
    both = mine.merge(plain, on=on, suffixes=("", "_peer")).groupby(["dtype", "what"], sort=False)
    return both[["error", "error_peer"]].max().assign(problems=both.size()).reset_index()


def _exact(errors: pd.DataFrame) -> str:
    """Say how exact the output of ours is in the first dtype; nothing where it was not compared."""
    output = errors[errors["what"] == "output"].head(1)
    words = (
        " In {dtype} its output is off float64's by {error:number} at most, plain attention's by {error_peer:number}."
    )
    return say(words, **output.iloc[0]) if len(output) else ""


def _errors_table(found: pd.DataFrame) -> Table:
    caption = "Largest relative errors (L2) against float64, ours / plain / over so many problems that both solved:"
    return Table("errors", caption, found, named(found, "dtype what error error_peer problems", what=""), across="")


def _memory(heads: pd.DataFrame, ours: str) -> Table:
    """Write what a call needs beside its inputs, in the first dtype and at a middle width."""
    off = (heads["head_dim"] - 64).abs()
    here = heads[(off == off.min()) & heads["dtype"].isin(heads["dtype"].head(1)) & heads["impl"].isin([ours, "eager"])]
    here = known(here[here["phase"] == BOTH_PHASES], "extra_bytes").sort_values("impl", ascending=False)
    caption = "Peak memory of forward + backward beside its inputs, one causal head:"
    columns = named(here, "who dtype head_dim seq_len extra_bytes")
    return Table("memory", caption, here, columns, all_rows=True, across="length")


def _leaderboard(rows: pd.DataFrame, ours: str, queued: str) -> Table:
    here = alike(rows, {**LEADERBOARD, "phase": BOTH_PHASES})
    caption = f"The leaderboard's shape, forward + backward{queued}, each beside ours:"
    found = versus(here, PROBLEM, "impl", list(WORDS), [ours])
    columns = named(found, "shape who median_ms median_call_ms tflops_per_s gain verdict", median_call_ms="alone, ms")
    return Table("leaderboard", caption, found, columns)
