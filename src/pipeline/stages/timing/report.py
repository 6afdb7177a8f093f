"""The timing section: the phases of a step by model, what each precision gains, and the rates that steps reach."""

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from pipeline.cells.timed_rows import TRAIN_STEP
from pipeline.formulas.parameters import BY_SIZE
from pipeline.formulas.sizes import SIZES
from pipeline.report.chart import Axis, Chart, Limit
from pipeline.report.formats import number, written
from pipeline.report.frame import card_counts, having, in_order, matching, with_values
from pipeline.report.section import Change, Section
from pipeline.report.table import Table
from pipeline.report.versus import FASTER, peer_of, shaded, versus
from pipeline.report.words import Words
from pipeline.stages.timing.cell import FIRST_STEP, PHASES

WORDS = Words(__file__)
PRECISIONS = ("fp32", "tf32", "bf16")
INSTEAD_OF = {"fp32": "fp32 without TF32", "tf32": "fp32 with TF32"}
WORK = ["size", "context_length", "batch_size"]
CELL = ["precision", *WORK]
PASSES = ("forward", "backward")
PARTS = (*PASSES, "optimizer")
ORDERS = {"precision": PRECISIONS, "size": BY_SIZE, "phase": (FIRST_STEP, *PHASES)}
WIDTHS = {name: size.d_model for name, size in SIZES.items()}
COURSE_STEPS = 10  # timed steps that the course asks for
MEAN_STD = "{mean_of_steps:number} ± {std_of_steps:number}"
WHERE = "{precision}, batch {batch_size}, context {context_length}"
SETTING = "{size}, batch {batch_size}, context {context_length}"


def build(rows: pd.DataFrame, other_stages: Mapping[str, pd.DataFrame]) -> Section:
    """Return the section of the timing stage; other_stages: the ceilings, for what a matrix product alone reaches."""
    host = in_order(rows[rows["clock"] == "host"], [*CELL, "mode", "phase"], ORDERS)
    host = host.assign(part=host["phase"].replace({TRAIN_STEP: "whole step"}))
    warm = host[host["warmup_steps"] == host["warmup_steps"].max()]
    eager = warm[warm["mode"] == "eager"]
    steps = with_values(eager[eager["phase"] == TRAIN_STEP])
    for_course = [_phases(eager), _warm_up(host), _compiled(warm)]
    if steps.empty:
        return Section(WORDS.say("no_steps"), for_course=for_course)
    setting, lowest = _main_setting(steps), _main_setting(steps[steps["precision"] == _lowest(steps["precision"])])
    where, gains = WHERE.format(**setting), _gains(eager, lowest)
    here = gains[gains["context_length"] == lowest["context_length"]]
    return Section(
        _answer(matching(steps, setting), where),
        [_steps(matching(eager, setting), where), _achieved(steps, setting, other_stages), _gain_by_width(gains)],
        [change for peer, words in INSTEAD_OF.items() for change in _changes(steps, lowest, peer, words)],
        for_course=[*for_course, _precisions(here[here["phase"].isin([*PASSES, TRAIN_STEP])], lowest)],
    )


def _lowest(precisions: Iterable[str]) -> str:
    return max(precisions, key=PRECISIONS.index)


def _main_setting(steps: pd.DataFrame) -> dict[str, Any]:
    """Choose the precision of most models (on a tie, the lowest), its most common batch, and their longest context."""
    models = steps.groupby("precision")["size"].nunique()
    precision = _lowest(models[models == models.max()].index)
    steps = steps[steps["precision"] == precision]
    batch = steps["batch_size"].mode().min()
    sizes = steps[steps["batch_size"] == batch].groupby("context_length")["size"].nunique()
    return {"precision": precision, "batch_size": batch, "context_length": sizes[sizes == sizes.max()].index.max()}


def _answer(steps: pd.DataFrame, where: str) -> str:
    sound = having(steps[(steps["status"] == "ok") & (steps["limited_by"] != "host")], "model_tflops_per_s", "mfu_pct")
    if sound.empty:
        return WORDS.say("no_sound_steps", where=where)
    best = sound.loc[sound["model_tflops_per_s"].idxmax()]
    return WORDS.say("answer", where=where, largest=sound.iloc[-1], best=best)


def _changes(steps: pd.DataFrame, setting: Mapping[str, Any], peer: str, words: str) -> list[Change]:
    """Compare the lowest precision with another, on the largest model where the host limits neither step."""
    here = matching(steps, {name: setting[name] for name in ("batch_size", "context_length")})
    duel = versus(here, WORK, "precision", setting["precision"], [peer])
    by_gpu = duel[(duel["precision"] != peer) & ~duel[["limited_by", "limited_by_peer"]].eq("host").any(axis=1)]
    return [
        Change.between(f"{row['precision']} instead of {words}", SETTING.format(**row), peer_of(row), row)
        for _, row in in_order(by_gpu, ["size"], ORDERS).tail(1).iterrows()
    ]


def _steps(here: pd.DataFrame, where: str) -> Table:
    shown = here.merge(here[here["phase"] == TRAIN_STEP], "left", WORK, suffixes=("", "_step"))
    shown = shown.assign(gpus=card_counts(shown, "cards_step"))
    names = "size tokens_per_s_step mfu_pct_step gpu_idle_pct_step repeats_step gpus part median_ms"
    return WORDS.table("steps", shown, names, across="part", where=where)


def _gains(eager: pd.DataFrame, setting: Mapping[str, Any]) -> pd.DataFrame:
    """Compare each phase in the lowest precision with fp32, at every context; limited_by is that of the whole step."""
    eager = eager[eager["batch_size"] == setting["batch_size"]]
    whole = eager.loc[eager["phase"] == TRAIN_STEP, [*CELL, "limited_by"]]
    phases = eager.drop(columns="limited_by").merge(whole, "left", CELL)
    duel = versus(phases, [*WORK, "phase"], "precision", setting["precision"], ["fp32"])
    duel = duel[duel["precision"] != "fp32"].assign(width=lambda each: each["size"].map(WIDTHS))
    tf32 = eager.loc[eager["precision"] == "tf32", [*WORK, "phase", "median_ms", "status", "cards"]]
    duel = duel.merge(tf32, "left", [*WORK, "phase"], suffixes=("", "_tf32"))
    duel = in_order(duel, ["width", "context_length", "phase"], ORDERS)
    return duel.assign(
        model=written(duel, "{size} ({width})"),
        by_host=duel[["limited_by", "limited_by_peer"]].eq("host").any(axis=1),
        limited_by_both=written(duel, "{limited_by} / {limited_by_peer}"),
        both_repeats=written(duel, "{repeats} / {repeats_peer}"),
        gpus=card_counts(duel, "cards", "cards_peer", "cards_tf32"),
    )


def _precisions(gains: pd.DataFrame, setting: Mapping[str, Any]) -> Table:
    """Tabulate passes and steps in fp32, TF32 if timed, and the lowest precision, narrow models first."""
    names = "model limited_by_both both_repeats gpus part median_ms_peer median_ms_tf32 median_ms gain verdict"
    return WORDS.table("precisions", gains, names, across="part", where=WHERE.format(**setting), **setting)


def _gain_by_width(gains: pd.DataFrame) -> Chart:
    drawn = shaded(gains[gains["phase"] != "optimizer"])
    status = drawn["status"].mask(drawn["by_host"], "unstable")
    drawn = drawn.assign(status=status, context=written(drawn, "context {context_length}"))
    drawn = in_order(drawn, ["part", "context_length", "width"], {"part": ("whole step", *PASSES)})
    axes, hover = ("width", "ratio", "context"), "size gain verdict limited_by_both"
    return WORDS.chart("precision_gain", drawn, "line", *axes, panel="part", limits=[Limit(1.0, "fp32")], hover=hover)


def _achieved(steps: pd.DataFrame, setting: Mapping[str, Any], other_stages: Mapping[str, pd.DataFrame]) -> Chart:
    is_main = steps.index.isin(matching(steps, setting).index)
    work = steps["model_tflops_per_s"] * steps["median_ms"] / 1e3
    # The peak of each precision, with what a large matrix product alone reaches.
    products = other_stages.get("ceilings", pd.DataFrame(columns=["dtype", "tflops_per_s"]))
    reached = products.groupby("dtype")["tflops_per_s"].max().dropna()
    words = {dtype: f"; a matmul alone {number(rate)}" for dtype, rate in reached.items()}
    peaks = having(steps, "peak_tflops_per_s").groupby("precision", sort=False)["peak_tflops_per_s"].first()
    limits = [Limit(peak, f"{name} peak {number(peak)}{words.get(name, '')}") for name, peak in peaks.items()]
    drawn = steps.assign(work=work, name=steps["size"].where(is_main, ""))
    axes = Axis("work", log=True), Axis("model_tflops_per_s", log=True)
    hover = "size context_length batch_size mfu_pct"
    return WORDS.chart("achieved", drawn, "point", *axes, "precision", label="name", limits=limits, hover=hover)


def _phases(eager: pd.DataFrame) -> Table:
    """Tabulate mean and deviation of both passes over all steps of all repeats, in fp32 if measured."""
    passes = eager[eager["phase"].isin(PASSES)]
    passes = passes[passes["precision"].isin(passes["precision"].head(1))]
    steps_ms = passes["samples_of_repeats"].explode().explode().astype(float)
    passes = passes.join(steps_ms.groupby(level=0).agg(["mean", "std", "count"]).add_suffix("_of_steps"))
    passes = passes.assign(spread=written(passes, MEAN_STD))
    forward, backward = (passes[passes["phase"] == phase] for phase in PASSES)
    both = forward.merge(backward[[*CELL, "spread"]], "left", CELL, suffixes=("", "_backward"))
    names = "size precision batch_size context_length spread spread_backward count_of_steps"
    return WORDS.table("phases", both, names, across="context_length")


def _warm_up(host: pd.DataFrame) -> Table:
    """Tabulate the first timed steps by number of warm-up steps: forward, backward and optimizer together."""
    cell = [*CELL, "warmup_steps"]
    parts = with_values(host[(host["mode"] == "eager") & host["phase"].isin(PARTS)])
    parts = parts[parts.groupby(CELL)["warmup_steps"].transform("nunique") > 1]
    # Of one process: each repeat has its own first step.
    samples = parts["samples_of_repeats"].str[0]
    steps_ms = pd.DataFrame({step: samples.str[step] for step in range(COURSE_STEPS)}, dtype=float)
    steps_ms = steps_ms.groupby([parts[name] for name in cell]).sum(min_count=len(PARTS))
    found = steps_ms.agg(["mean", "std", "count"], axis=1).add_suffix("_of_steps")
    found = found.assign(first_ms=steps_ms[0], later_ms=steps_ms.drop(columns=0).median(axis=1)).reset_index()
    found = in_order(found.assign(spread=written(found, MEAN_STD)), cell, ORDERS)
    names = "size precision context_length warmup_steps spread first_ms later_ms count_of_steps"
    return WORDS.table("warm_up", found, names, across="warmup_steps")


def _compiled(warm: pd.DataFrame) -> Table:
    """Tabulate each phase compiled and eager, with what compiling costs."""
    duel = versus(warm, [*CELL, "phase"], "mode", "compiled", ["eager"])
    first = warm.loc[warm["phase"] == FIRST_STEP, [*CELL, "median_ms"]]
    whole = duel.loc[duel["phase"] == TRAIN_STEP, [*CELL, "median_ms", "median_ms_peer", "verdict", "limited_by"]]
    duel = duel.merge(first, "left", CELL, suffixes=("", "_first"))
    duel = duel.merge(whole, "left", CELL, suffixes=("", "_step"))
    steps = duel["median_ms_first"] / (duel["median_ms_peer_step"] - duel["median_ms_step"])
    duel = duel.assign(first_s=duel["median_ms_first"] / 1e3, steps=steps.where(duel["verdict_step"] == FASTER))
    duel = in_order(duel, [*CELL, "phase"], ORDERS)
    sizes = duel.groupby("precision")["size"]
    duel = duel[duel["size"].eq(sizes.transform("first")) | duel["size"].eq(sizes.transform("last"))]
    cell = "size precision context_length batch_size limited_by_step"
    names = f"{cell} first_s steps part median_ms_peer median_ms gain verdict"
    return WORDS.table("compiled", duel, names, across="part")
