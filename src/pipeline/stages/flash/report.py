"""The flash section: ours beside PyTorch's and FlashAttention-4 at shapes of real models; one head for the course."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields

import pandas as pd

from pipeline.formulas.attention import Shape, forward_flops
from pipeline.report.chart import Axis, Chart, Limit
from pipeline.report.formats import written
from pipeline.report.frame import alike, having, in_order, with_values
from pipeline.report.section import Compared, Section
from pipeline.report.table import NOTHING, OUTCOME_WORDS, Table
from pipeline.report.versus import FASTER, SLOWER, judged, shaded, side_by_side, versus
from pipeline.report.versus import beside as against
from pipeline.report.words import Words
from pipeline.stages.flash.cell import DTYPES, FA4, LEADERBOARD, OURS, PEERS, PHASES, THREE_TF32, TILES, Cell

WORDS = Words(__file__)
PROBLEM = [item.name for item in fields(Cell) if item.name != "repeat"]
FORWARD, BACKWARD, BOTH = PHASES
NAMES = {
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
BOTH_PASSES = "{forward}", "{backward}"
HELD = "{sustained_tflops_per_s:number}", "{sustained_tflops_per_s_peer:number}", "{fa4_held:number}"
ERRORS = {f"{what}_rel_error": what for what in ("output", "dq", "dk", "dv")}


def build(rows: pd.DataFrame, beside: Mapping[str, pd.DataFrame]) -> Section:
    """Return the section of the flash stage; beside: the rates of matrix products, of the stage ceilings."""
    rows = _named(rows, beside)
    measured = set(with_values(rows)["impl"])
    ours = next((name for name in OURS if name in measured), OURS[0])
    models, heads = rows[rows["num_heads"] > 1], rows[(rows["num_heads"] == 1) & rows["is_causal"]]
    torch_s, fa4_s, heads_s = _duel(models, ours, PEERS), _duel(models, ours, [FA4]), _duel(heads, ours, PEERS)
    plain_s = side_by_side(heads, [*PROBLEM, "phase"], "impl", ours, "eager")
    errors = _errors(rows, ours)
    best = with_values(models[(models["impl"] == ours) & (models["phase"] == BOTH)])
    rates = best[["shape", "tflops_per_s", "status"]].itertuples(index=False, name=None)
    return Section(
        _answer(torch_s, heads_s) + _more(fa4_s, errors.rows),
        [_rates(models, ours, torch_s), _shapes(torch_s, fa4_s, _wrong(models, FA4)), _gains(plain_s)],
        for_course=[errors, _grid(plain_s), _leaderboard(rows, ours)],
        compared=[Compared(f"attention, ours, {shape}", "TFLOP/s", rate, status) for shape, rate, status in rates],
    )


def _named(rows: pd.DataFrame, beside: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Sort problems by dtype, then by work; add labels and a matrix product's rate, of fp32 a third of TF32's."""
    shapes = [Shape(*each) for each in zip(*(rows[item.name] for item in fields(Shape)), strict=True)]
    products = beside.get("ceilings", pd.DataFrame(columns=["dtype", "status", "tflops_per_s"]))
    rates = dict(with_values(products).groupby("dtype")["tflops_per_s"].max())
    product = rows["dtype"].map(rates).mask(rows["peak_of"] == THREE_TF32, rates.get("tf32", math.nan) / 3)
    rows = rows.assign(
        shape=rows["dtype"] + [f" {_label(shape)}" for shape in shapes],
        who=rows["impl"].map(NAMES),
        work=[-forward_flops(shape) for shape in shapes],
        product_tflops_per_s=product,
        queued=WORDS.say("queued") if (rows["clock"] == "device").any() else "",
    )
    return in_order(rows, ["dtype", "work", "shape", "impl"], {"dtype": DTYPES, "impl": list(NAMES)})


def _label(shape: Shape) -> str:
    """Name a problem: `2×32:8×8192×128`, of 32 heads that share 8 of keys; causal unless it says otherwise."""
    shared = f":{shape.num_kv_heads}" if shape.has_shared_keys else ""
    mask = "" if shape.is_causal else ", no mask"
    return f"{shape.batch_size}×{shape.num_heads}{shared}×{shape.seq_len}×{shape.head_dim}{mask}"


def _duel(rows: pd.DataFrame, ours: str, peers: Sequence[str]) -> pd.DataFrame:
    """Put ours beside the fastest of peers, forward + backward; add how lone calls and each pass compare."""
    both = versus(rows[rows["phase"] == BOTH], PROBLEM, "impl", ours, peers)
    for phase in (FORWARD, BACKWARD):
        one = versus(rows[rows["phase"] == phase], PROBLEM, "impl", ours, peers)
        one = one.assign(**{phase: written(one, "{ratio:times} {verdict}")})
        both = both.merge(one[[*PROBLEM, phase]], "left", PROBLEM)
    calls = having(both, "median_call_ms", "median_call_ms_peer").filter(regex=r"^(median|q1|q3)_call_ms")
    calls = calls.rename(columns=lambda name: name.replace("_call", "")).assign(status="ok", status_peer="ok")
    both = both.assign(alone=judged(calls, "_peer")["verdict"])
    return both.assign(lone_ms=written(both, "{median_call_ms:number} / {median_call_ms_peer:number}, {alone}"))


def _answer(models: pd.DataFrame, heads: pd.DataFrame) -> str:
    if models.empty:
        return WORDS.say("nowhere_together") if heads.empty else WORDS.say("one_head", **heads.iloc[0])
    here = models[models["dtype"] == models["dtype"].iloc[0]]
    alone = here["alone"].value_counts().reindex([FASTER, SLOWER], fill_value=0)
    return WORDS.say(
        "answer",
        first=here.iloc[0],
        won=(here["verdict"] == FASTER).sum(),
        n=len(here),
        ratio=here["ratio"].agg(["min", "max"]),
        alone=alone,
        open=here["alone"].count() - alone.sum(),
        rate=here["tflops_per_s"].max(),
    )


def _more(fa4_s: pd.DataFrame, errors: pd.DataFrame) -> str:
    """Say of the first dtype how often FlashAttention-4 is faster, and how exact the output of ours is, if measured."""
    fa4_s = fa4_s[fa4_s["dtype"].isin(fa4_s["dtype"].head(1))]
    output = errors[errors["part"] == "output"]
    faster, slower = (fa4_s["verdict"].eq(verdict).sum() for verdict in (FASTER, SLOWER))
    fa4 = "" if fa4_s.empty else " " + WORDS.say("fa4", faster=faster, slower=slower, n=len(fa4_s))
    beside = "" if output.empty or pd.isna(output["error_torch"].iloc[0]) else WORDS.say("torch", **output.iloc[0])
    return fa4 + ("" if output.empty else " " + WORDS.say("exact", beside=beside, **output.iloc[0]))


def _wrong(models: pd.DataFrame, impl: str) -> pd.DataFrame:
    """Return the problems of which an implementation computes something wrong."""
    return models.loc[(models["impl"] == impl) & (models["status"] == "wrong"), PROBLEM].drop_duplicates()


def _shapes(torch_s: pd.DataFrame, fa4_s: pd.DataFrame, fa4_wrong: pd.DataFrame) -> Table:
    """Write ours beside the fastest of PyTorch's, and beside FlashAttention-4 where that ran."""
    fa4_s = fa4_s.assign(
        fa4=written(fa4_s, "{median_ms_peer:number}, {gain}, {verdict}"),
        fa4_passes=_joined(fa4_s, *BOTH_PASSES),
        fa4_held=fa4_s["sustained_tflops_per_s_peer"],
    )
    fa4_s = pd.concat([fa4_s, fa4_wrong.assign(fa4=OUTCOME_WORDS["wrong"])])
    duel = torch_s.merge(fa4_s[[*PROBLEM, "fa4", "fa4_passes", "fa4_held"]].drop_duplicates(PROBLEM), "left", PROBLEM)
    duel = duel.assign(
        torch=written(duel, "{who_peer}, {median_ms_peer:number}"),
        beside=written(duel, "{gain}, {verdict}"),
        passes=_joined(duel, *BOTH_PASSES),
        held=_joined(duel, *HELD),
    )
    gpus = duel["cards"].str.split(", ").explode().nunique()
    names = "shape median_ms torch beside passes lone_ms fa4 fa4_passes held repeats"
    return WORDS.table("shapes", duel, names, only_filled=True, gpus=gpus)


def _joined(rows: pd.DataFrame, *templates: str) -> list[str | None]:
    """Write templates with slashes between them; nothing where the values of all are missing."""
    lines = zip(*(written(rows, template) for template in templates), strict=True)
    return [" / ".join(each or NOTHING for each in line) if any(line) else None for line in lines]


def _rates(models: pd.DataFrame, ours: str, duel: pd.DataFrame) -> Chart:
    """Draw the rates of ours, FlashAttention-4 and each shape's fastest of PyTorch's, in the first dtype."""
    here = duel[duel["dtype"].isin(duel["dtype"].head(1))]
    rows = with_values(models[(models["phase"] == BOTH) & models["dtype"].isin(here["dtype"])])
    best = (rows["shape"] + rows["impl"]).isin(here["shape"] + here["impl_peer"])
    rows = rows[best | rows["impl"].isin([ours, FA4])]
    rows = rows.assign(label=written(rows, "{tflops_per_s:number}"))
    limits = [Limit(rate, "a matmul alone") for rate in here["product_tflops_per_s"].dropna().unique()]
    hover = "median_ms median_call_ms status"
    return WORDS.chart("rates", rows, "bar", "tflops_per_s", "shape", "who", label="label", limits=limits, hover=hover)


def _grid(duel: pd.DataFrame) -> Table:
    """Write ours beside plain attention at a middle and the longest length that every data type and width has."""
    lanes = duel["dtype"] + " " + duel["head_dim"].astype(str)
    duel = duel[lanes.groupby(duel["seq_len"]).transform("nunique") == lanes.nunique()]
    lengths = sorted(duel["seq_len"].unique())
    duel = duel[duel["seq_len"].isin([*lengths[-1:], *lengths[: len(lengths) // 2][-1:]])]
    duel = in_order(duel, ["dtype", "seq_len", "phase", "head_dim"], {"dtype": DTYPES, "phase": PHASES})
    duel = duel.assign(part=duel["phase"].replace({BOTH: "both"}))
    names = "dtype seq_len part head_dim median_ms median_ms_peer gain verdict"
    return WORDS.table("grid", duel, names, across="head_dim")


def _gains(duel: pd.DataFrame) -> Chart:
    both = shaded(having(duel[duel["phase"] == BOTH], "ratio")).sort_values("head_dim", kind="stable")
    both = both.assign(width=written(both, "head_dim {head_dim}"))
    axes = Axis("seq_len", log=True), Axis("ratio", log=True)
    limits, hover = [Limit(1.0, "as fast as plain")], "verdict median_ms median_ms_peer"
    return WORDS.chart("gains", both, "line", *axes, "width", panel="dtype", limits=limits, hover=hover)


def _errors(rows: pd.DataFrame, ours: str) -> Table:
    """Put the largest errors of ours beside plain attention's, over the problems at which both were checked.

    error_torch: of each problem, the smallest error of PyTorch's kernels.
    """
    on = [*PROBLEM, "phase"]
    checked = rows.rename(columns=ERRORS).melt([*on, "impl"], ERRORS.values(), "part", "error").dropna()
    mine, plain = (checked[checked["impl"] == impl] for impl in (ours, "eager"))
    both = mine.merge(plain, on=[*on, "part"], suffixes=("", "_peer"))
    kernels = checked[checked["impl"].str.startswith("sdpa")].groupby([*on, "part"], as_index=False)["error"].min()
    both = both.merge(kernels.rename(columns={"error": "error_torch"}), "left", [*on, "part"])
    both = both.groupby(["dtype", "part"], sort=False)
    found = both[["error", "error_torch", "error_peer"]].max().assign(problems=both.size()).reset_index()
    return WORDS.table("errors", found, "dtype part error error_torch error_peer problems", across="part")


def _leaderboard(rows: pd.DataFrame, ours: str) -> Table:
    here = alike(rows, {**LEADERBOARD, "phase": BOTH})
    here = with_values(here[here["impl"].isin({*NAMES} - {"sdpa_efficient", "flex"})])
    found = against(here, PROBLEM, here["impl"] == ours)
    return WORDS.table("leaderboard", found, "shape who median_ms median_call_ms tflops_per_s gain verdict")
