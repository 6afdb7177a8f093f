"""Build the flash section: ours against PyTorch's and FlashAttention-4 at model shapes, and one head for the course."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields

import pandas as pd

from pipeline.formulas.attention import Shape, forward_flops
from pipeline.report.chart import Axis, Chart, Limit
from pipeline.report.formats import written
from pipeline.report.frame import having, in_order, matching, with_values
from pipeline.report.section import Compared, Section
from pipeline.report.table import NOTHING, OUTCOME_WORDS, Table
from pipeline.report.versus import FASTER, SLOWER, against_base, judged, shaded, side_by_side, versus
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


def build(rows: pd.DataFrame, other_stages: Mapping[str, pd.DataFrame]) -> Section:
    """Return the section of the flash stage; other_stages: rows of ceilings, for the rates of matrix products."""
    rows = _named(rows, other_stages)
    measured = set(with_values(rows)["impl"])
    ours = next((name for name in OURS if name in measured), OURS[0])
    models, heads = rows[rows["num_heads"] > 1], rows[(rows["num_heads"] == 1) & rows["is_causal"]]
    vs_torch, vs_fa4, heads_vs_torch = _duel(models, ours, PEERS), _duel(models, ours, [FA4]), _duel(heads, ours, PEERS)
    vs_plain = side_by_side(heads, [*PROBLEM, "phase"], "impl", ours, "eager")
    errors = _errors(rows, ours)
    best = with_values(models[(models["impl"] == ours) & (models["phase"] == BOTH)])
    rates = best[["shape", "tflops_per_s", "status"]].itertuples(index=False, name=None)
    return Section(
        _answer(vs_torch, heads_vs_torch) + _fa4_and_errors(vs_fa4, errors.rows),
        [_rates(models, ours, vs_torch), _shapes(vs_torch, vs_fa4, _wrong(models, FA4)), _gains(vs_plain)],
        for_course=[errors, _grid(vs_plain), _leaderboard(rows, ours)],
        compared=[
            Compared(f"attention forward + backward, ours, {shape}", "TFLOP/s", rate, status)
            for shape, rate, status in rates
        ],
    )


def _named(rows: pd.DataFrame, other_stages: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Sort problems by dtype, then work; add labels and the matrix-product rate, a third of TF32's for 3×TF32."""
    shapes = [Shape(*each) for each in zip(*(rows[item.name] for item in fields(Shape)), strict=True)]
    products = other_stages.get("ceilings", pd.DataFrame(columns=["dtype", "status", "tflops_per_s"]))
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
    """Name a problem: in `2×32:8×8192×128`, 32 query heads share 8 key heads. Without `, no mask` it is causal."""
    shared = f":{shape.num_kv_heads}" if shape.has_shared_keys else ""
    mask = "" if shape.is_causal else ", no mask"
    return f"{shape.batch_size}×{shape.num_heads}{shared}×{shape.seq_len}×{shape.head_dim}{mask}"


def _duel(rows: pd.DataFrame, ours: str, peers: Sequence[str]) -> pd.DataFrame:
    """Compare ours with the fastest peer, forward + backward; add how single calls and each pass compare."""
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
    called = here["alone"].count()
    one_call = " " + WORDS.say("one_call", alone=alone, open=called - alone.sum()) if called else ""
    return WORDS.say(
        "answer",
        first=here.iloc[0],
        won=(here["verdict"] == FASTER).sum(),
        n=len(here),
        ratio=here["ratio"].agg(["min", "max"]),
        one_call=one_call,
        rate=here["tflops_per_s"].max(),
    )


def _fa4_and_errors(vs_fa4: pd.DataFrame, errors: pd.DataFrame) -> str:
    """Say for the first dtype how often FlashAttention-4 is faster, and how accurate our output is, if measured."""
    vs_fa4 = vs_fa4[vs_fa4["dtype"].isin(vs_fa4["dtype"].head(1))]
    output = errors[errors["part"] == "output"]
    faster, slower = (vs_fa4["verdict"].eq(verdict).sum() for verdict in (FASTER, SLOWER))
    fa4 = "" if vs_fa4.empty else " " + WORDS.say("fa4", faster=faster, slower=slower, n=len(vs_fa4))
    beside = "" if output.empty or pd.isna(output["error_torch"].iloc[0]) else WORDS.say("torch", **output.iloc[0])
    return fa4 + ("" if output.empty else " " + WORDS.say("exact", beside=beside, **output.iloc[0]))


def _wrong(models: pd.DataFrame, impl: str) -> pd.DataFrame:
    """Return the problems where an implementation is wrong."""
    return models.loc[(models["impl"] == impl) & (models["status"] == "wrong"), PROBLEM].drop_duplicates()


def _shapes(vs_torch: pd.DataFrame, vs_fa4: pd.DataFrame, fa4_wrong: pd.DataFrame) -> Table:
    """Compare ours with the fastest of PyTorch's, and with FlashAttention-4 where it ran."""
    vs_fa4 = vs_fa4.assign(
        fa4=written(vs_fa4, "{median_ms_peer:number}, {gain}, {verdict}"),
        fa4_passes=_joined(vs_fa4, *BOTH_PASSES),
        fa4_held=vs_fa4["sustained_tflops_per_s_peer"],
    )
    vs_fa4 = pd.concat([vs_fa4, fa4_wrong.assign(fa4=OUTCOME_WORDS["wrong"])])
    duel = vs_torch.merge(vs_fa4[[*PROBLEM, "fa4", "fa4_passes", "fa4_held"]].drop_duplicates(PROBLEM), "left", PROBLEM)
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
    """Fill the templates and join them with slashes; None if the values of all of them are missing."""
    lines = zip(*(written(rows, template) for template in templates), strict=True)
    return [" / ".join(each or NOTHING for each in line) if any(line) else None for line in lines]


def _rates(models: pd.DataFrame, ours: str, duel: pd.DataFrame) -> Chart:
    """Plot the rates of ours, FlashAttention-4 and PyTorch's fastest at each shape, in the first dtype."""
    here = duel[duel["dtype"].isin(duel["dtype"].head(1))]
    rows = with_values(models[(models["phase"] == BOTH) & models["dtype"].isin(here["dtype"])])
    best = (rows["shape"] + rows["impl"]).isin(here["shape"] + here["impl_peer"])
    rows = rows[best | rows["impl"].isin([ours, FA4])]
    rows = rows.assign(label=written(rows, "{tflops_per_s:number}"))
    limits = [Limit(rate, "a matmul alone") for rate in here["product_tflops_per_s"].dropna().unique()]
    hover = "median_ms median_call_ms status"
    return WORDS.chart("rates", rows, "bar", "tflops_per_s", "shape", "who", label="label", limits=limits, hover=hover)


def _grid(duel: pd.DataFrame) -> Table:
    """Compare ours with plain attention at a middle and at the longest length that every dtype and head_dim has."""
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
    """Compare the largest errors of ours and of plain attention over the problems where both were checked.

    error_torch: the smallest error among PyTorch's kernels per problem, then the largest over problems.
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
    here = matching(rows, {**LEADERBOARD, "phase": BOTH})
    here = with_values(here[here["impl"].isin({*NAMES} - {"sdpa_efficient", "flex"})])
    found = against_base(here, PROBLEM, here["impl"] == ours)
    return WORDS.table("leaderboard", found, "shape who median_ms median_call_ms tflops_per_s gain verdict")
