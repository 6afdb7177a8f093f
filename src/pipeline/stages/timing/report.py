"""The timing section: the phases of a step by model, what each precision gains, and the rates that steps reach."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from pipeline.formulas.flops import train_step_flops
from pipeline.formulas.parameters import BY_SIZE
from pipeline.formulas.sizes import SIZES
from pipeline.report.chart import Axis, Chart, Limit
from pipeline.report.formats import count, interval, ms, number, percent, text
from pipeline.report.frame import alike, card_counts, in_order, known, with_figures
from pipeline.report.section import Change, Section, say
from pipeline.report.table import Table
from pipeline.report.versus import UNDECIDED, versus
from pipeline.stages.timing.cell import FIRST_STEP, PHASES

PRECISIONS = ("fp32", "tf32", "bf16")
WORK = ["size", "context_length", "batch_size"]
STEP = "train_step"
PARTS = ("forward", "backward", "optimizer")
ORDERS = {"precision": PRECISIONS, "size": BY_SIZE, "phase": (FIRST_STEP, *PHASES)}
WORDS = {STEP: "whole step"}
ASKED_STEPS = 10  # that the course wants timed
MODEL, CONTEXT = ("model", "size", text), ("context", "context_length", count)
GAIN = (("times as fast (interval)", "gain", text), ("verdict", "verdict", text), ("limited by", "limited_by", text))
REPEATS = (("repeats", "repeats", count), ("GPUs", "gpus", count))


def build(rows: pd.DataFrame, beside: Mapping[str, pd.DataFrame]) -> Section:
    """Return the section of the timing stage; beside: the ceilings, for what a matrix product alone reaches."""
    host = in_order(rows[rows["clock"] == "host"], ["precision", *WORK, "mode", "phase"], ORDERS)
    warm = host[host["warmup_steps"] == host["warmup_steps"].max()]
    eager = warm[warm["mode"] == "eager"]
    steps = with_figures(eager[eager["phase"] == STEP])
    compiled = [_compiled(warm), _warm_up(host)]
    if steps.empty:
        return Section("No whole step as written has figures.", for_course=[_all_phases(warm), *compiled])
    setting = _main_setting(steps)
    here = alike(eager, setting)
    gains = _gains(eager, str(setting["precision"]))
    return Section(
        _answer(alike(steps, setting)),
        [
            _steps(here, setting),
            _precisions(gains, eager, setting),
            _achieved(steps, setting, beside),
            _gain_chart(gains, setting),
        ],
        _changes(gains, setting),
        for_course=[_all_phases(eager), *compiled],
    )


def _main_setting(steps: pd.DataFrame) -> dict[str, Any]:
    """Choose the precision in which people train, the usual batch, and the longest context that most models have."""
    precision = max(steps["precision"].unique(), key=PRECISIONS.index)
    steps = steps[steps["precision"] == precision]
    batch = steps["batch_size"].mode().min()
    sizes = steps[steps["batch_size"] == batch].groupby("context_length")["size"].nunique()
    return {"precision": precision, "batch_size": batch, "context_length": sizes[sizes == sizes.max()].index.max()}


def _not_by_host(rows: pd.DataFrame, *columns: str) -> pd.DataFrame:
    """Drop rows of which the host limits a step: another host would give another time."""
    return rows[~rows[list(columns or ("limited_by",))].eq("host").any(axis=1)]


def _answer(steps: pd.DataFrame) -> str:
    sound = known(_not_by_host(steps[steps["status"] == "ok"]), "model_tflops_per_s", "mfu_pct")
    if sound.empty:
        return say(
            "{setting}: no stable step of which the GPU sets the time; {size} takes {step}.",
            setting=_words(steps.iloc[-1]),
            size=steps["size"].iloc[-1],
            step=ms(steps["median_ms"].iloc[-1]),
        )
    largest, best = sound.iloc[-1], sound.loc[sound["model_tflops_per_s"].idxmax()]
    return say(
        "{setting}: {size} trains {tokens} tokens/s, a step in {step}. Of the stable steps {best} reaches the "
        "highest rate: {rate} TFLOP/s, {mfu} of the peak.",
        setting=_words(largest),
        size=largest["size"],
        tokens=count(largest["tokens_per_s"]),
        step=ms(largest["median_ms"]),
        best=best["size"],
        rate=number(best["model_tflops_per_s"]),
        mfu=percent(best["mfu_pct"]),
    )


def _steps(here: pd.DataFrame, setting: Mapping[str, Any]) -> Table:
    """Write the medians of the phases and what the whole step reaches, a row a model."""
    whole = here[here["phase"] == STEP]
    for part in PARTS:
        own = here.loc[here["phase"] == part, [*WORK, "median_ms", "status", "cards"]]
        whole = whole.merge(own, "left", WORK, suffixes=("", f"_{part}"))
    whole = whole.assign(gpus=card_counts(whole, "cards", *(f"cards_{part}" for part in PARTS)))
    columns = [
        MODEL,
        *((f"{part}, ms", f"median_ms_{part}", number) for part in PARTS),
        ("step, ms", "median_ms", number),
        ("tokens/s", "tokens_per_s", count),
        ("MFU", "mfu_pct", percent),
        ("GPU idle", "gpu_idle_pct", percent),
        *REPEATS,
    ]
    return Table("steps", f"{_words(setting)}, as written; a row's repeats ran on so many GPUs:", whole, columns)


def _words(setting: Mapping[str, Any] | pd.Series) -> str:
    return f"{setting['precision']}, batch {setting['batch_size']:.0f}, context {setting['context_length']:.0f}"


def _gains(eager: pd.DataFrame, precision: str) -> pd.DataFrame:
    """Put each phase in the main precision beside itself in fp32, at every context."""
    duel = versus(eager, [*WORK, "phase"], "precision", precision, ["fp32"])
    duel = in_order(duel[duel["precision"] != "fp32"], [*WORK, "phase"], ORDERS)
    return duel.assign(
        gain=[interval(row) for _, row in duel.iterrows()],
        gpus=card_counts(duel, "cards", "cards_peer"),
    )


def _precisions(gains: pd.DataFrame, eager: pd.DataFrame, setting: Mapping[str, Any]) -> Table:
    """Write a whole step in the main precision beside fp32, with TF32 where it was timed.

    At the main context every model, at the shortest the first and the last.
    """
    steps = gains[(gains["phase"] == STEP) & (gains["batch_size"] == setting["batch_size"])]
    short = steps[steps["context_length"] == steps["context_length"].min()]
    main = steps[steps["context_length"] == setting["context_length"]]
    steps = pd.concat([main, short.head(1), short.tail(1)])
    steps = steps[~steps.index.duplicated()]
    tf32 = eager.loc[(eager["precision"] == "tf32") & (eager["phase"] == STEP), [*WORK, "median_ms", "status"]]
    shown = steps.merge(tf32, "left", WORK, suffixes=("", "_tf32"))
    shown = shown.sort_values("context_length", kind="stable", ascending=False)
    columns = [
        MODEL,
        CONTEXT,
        ("fp32, ms", "median_ms_peer", number),
        ("TF32, ms", "median_ms_tf32", number),
        (f"{setting['precision']}, ms", "median_ms", number),
        *GAIN,
        *REPEATS,
    ]
    caption = f"A whole step by precision, and how many times as fast {setting['precision']} is as fp32:"
    return Table("precisions", caption, shown, columns)


def _achieved(steps: pd.DataFrame, setting: Mapping[str, Any], beside: Mapping[str, pd.DataFrame]) -> Chart:
    """Draw the rate of every step over its work, beside the peaks and what a matrix product alone reaches."""
    work = [
        train_step_flops(
            SIZES[row["size"]], int(row["setting_vocab_size"]), int(row["batch_size"]), int(row["context_length"])
        )
        for _, row in steps.iterrows()
    ]
    drawn = steps.assign(work=np.array(work) / 1e12)
    named = alike(drawn, setting).index
    drawn = drawn.assign(name=drawn["size"].where(drawn.index.isin(named), ""))
    return Chart(
        "achieved",
        "TFLOP/s of training steps over the work of a step, by model, context and batch",
        drawn,
        "point",
        Axis("work", "work of one training step (TFLOP)", log=True),
        Axis("model_tflops_per_s", "achieved TFLOP/s", log=True),
        "precision",
        label="name",
        limits=_limits(steps, beside),
        hover={
            "model": "size",
            "context": "context_length",
            "batch": "batch_size",
            "tokens/s": "tokens_per_s",
            "MFU (%)": "mfu_pct",
            "GPU idle (%)": "gpu_idle_pct",
        },
    )


def _limits(steps: pd.DataFrame, beside: Mapping[str, pd.DataFrame]) -> list[Limit]:
    """Return the peak of each precision, with what a large matrix product alone reaches."""
    products = known(beside.get("ceilings", pd.DataFrame()), "tflops_per_s", "dtype")
    reached = products.groupby("dtype")["tflops_per_s"].max() if len(products) else {}
    peaks = known(steps, "peak_tflops_per_s").drop_duplicates("precision").set_index("precision")["peak_tflops_per_s"]
    words = {name: f"; a product alone {number(reached[name])}" for name in peaks.index if name in reached}
    return [Limit(peak, f"{name} peak {number(peak)}{words.get(name, '')}") for name, peak in peaks.items()]


def _gain_chart(gains: pd.DataFrame, setting: Mapping[str, Any]) -> Chart:
    drawn = gains[(gains["phase"] == STEP) & (gains["batch_size"] == setting["batch_size"])]
    precision = setting["precision"]
    return Chart(
        "precision_gain",
        f"Times as fast in {precision} as in fp32: a whole step by context and model",
        drawn.assign(status=drawn["verdict"].map({UNDECIDED: "unstable"}).fillna("ok")),
        "line",
        Axis("context_length", "context", log=True),
        Axis("ratio", "times as fast"),
        "size",
        hover={"verdict": "verdict", "interval": "gain", f"{precision} limited by": "limited_by"},
        limits=[Limit(1.0, "as fast as fp32")],
    )


def _changes(gains: pd.DataFrame, setting: Mapping[str, Any]) -> list[Change]:
    """Return what the main precision gains with the largest model whose two steps the GPU limits."""
    work = {name: setting[name] for name in ("batch_size", "context_length")}
    rows = _not_by_host(alike(gains[gains["phase"] == STEP], work), "limited_by", "limited_by_peer")
    return [
        Change(
            f"{row['precision']} instead of fp32",
            f"{row['size']}, batch {row['batch_size']:.0f}, context {row['context_length']:.0f}",
            ms(row["median_ms_peer"]),
            ms(row["median_ms"]),
            row.to_dict(),
        )
        for _, row in rows.tail(1).iterrows()
    ]


def _all_phases(eager: pd.DataFrame) -> Table:
    """Write mean, deviation and number of steps of the forward and the backward pass, all steps of all repeats."""
    sides = []
    for part in ("forward", "backward"):
        own = eager.loc[eager["phase"] == part, ["precision", *WORK, "status"]]
        samples = [_pooled(each) for each in eager.loc[own.index, "samples_of_repeats"]]
        figures = {"mean_ms": [each.mean() for each in samples], "std_ms": [each.std() for each in samples]}
        own = own.assign(**figures, n=[len(each) for each in samples])
        sides.append(own.rename(columns={name: f"{name}_{part}" for name in ("status", "mean_ms", "std_ms", "n")}))
    both = sides[0].merge(sides[1], "outer", ["precision", *WORK])
    both = in_order(both[both["precision"] == "fp32"] if "fp32" in set(both["precision"]) else both, WORK, ORDERS)
    both = both.assign(**{part: _spread(both, f"_{part}") for part in ("forward", "backward")})
    columns = [
        MODEL,
        ("batch", "batch_size", count),
        CONTEXT,
        ("forward", "forward", text),
        ("backward", "backward", text),
        ("n", "n_backward", count),
    ]
    precision = ", ".join(both["precision"].unique())
    caption = f"Forward / backward, ms ({precision}, mean ± standard deviation) / number of steps:"
    return Table("phases", caption, both, columns, all_rows=True, across="context")


def _spread(rows: pd.DataFrame, suffix: str = "") -> list[str | None]:
    """Write means with their standard deviations."""
    pairs = zip(rows[f"mean_ms{suffix}"], rows[f"std_ms{suffix}"], strict=True)
    return [None if pd.isna(mean) else f"{number(mean)} ± {number(std)}" for mean, std in pairs]


def _pooled(samples: object) -> pd.Series:
    every = [each for repeat in samples for each in repeat] if isinstance(samples, list) else []
    return pd.Series(every, dtype=float)


def _compiled(warm: pd.DataFrame) -> Table:
    """Write each phase compiled beside itself as written; of the whole step what compiling costs."""
    duel = versus(warm, ["precision", *WORK, "phase"], "mode", "compiled", ["eager"])
    first = warm.loc[warm["phase"] == FIRST_STEP, ["precision", *WORK, "median_ms"]].assign(phase=STEP)
    duel = duel.merge(first, "left", ["precision", *WORK, "phase"], suffixes=("", "_compile"))
    saved = duel["median_ms_peer"] - duel["median_ms"]
    duel = in_order(duel, ["precision", *WORK, "phase"], ORDERS).assign(
        gain=[interval(row) for _, row in duel.iterrows()],
        seconds=duel["median_ms_compile"] / 1e3,
        steps=(duel["median_ms_compile"] / saved).where((saved > 0) & (duel["verdict"] == "faster")),
    )
    duel = duel.assign(model=duel["size"] + " " + duel["precision"], part=duel["phase"].replace(WORDS))
    columns = [
        ("model", "model", text),
        CONTEXT,
        ("step limited by", "limited", text),
        ("first step, s", "first_s", number),
        ("paid back after steps", "paid_back", count),
        ("", "part", text),
        ("as written, ms", "median_ms_peer", number),
        ("compiled, ms", "median_ms", number),
        *GAIN[:2],
    ]
    # What the whole step alone has stands once in a line.
    whole = duel.groupby("model", sort=False)[["limited_by", "seconds", "steps"]].transform("first")
    duel = duel.assign(limited=whole["limited_by"], first_s=whole["seconds"], paid_back=whole["steps"])
    caption = "As written / compiled, ms / times as fast (interval) / verdict:"
    return Table("compiled", caption, duel, columns, all_rows=True, across="")


def _warm_up(host: pd.DataFrame) -> Table:
    """Write the first timed steps after fewer warm-up steps: forward, backward and optimizer together."""
    cells = ["precision", *WORK, "warmup_steps"]
    parts = with_figures(host[(host["mode"] == "eager") & host["phase"].isin(PARTS)])
    varied = parts.groupby(["precision", *WORK])["warmup_steps"].transform("nunique") > 1
    lines = []
    for keys, cell in parts[varied].groupby(cells, sort=False):
        # One process: repeats have a first step each.
        samples = [repeats[0][:ASKED_STEPS] for repeats in cell["samples_of_repeats"]]
        steps = np.sum([each[: min(map(len, samples))] for each in samples], axis=0)
        found = {"n": len(steps), "first_ms": steps[0], "mean_ms": steps.mean(), "std_ms": pd.Series(steps).std()}
        later = float(np.median(steps[1:])) if len(steps) > 1 else np.nan
        lines.append(dict(zip(cells, keys, strict=True)) | found | {"later_ms": later, "times": steps[0] / later})
    rows = pd.DataFrame(lines, columns=[*cells, "n", "first_ms", "mean_ms", "std_ms", "later_ms", "times"])
    columns = [
        MODEL,
        ("precision", "precision", text),
        CONTEXT,
        ("warm-up steps:", "warmup_steps", count),
        ("mean ± std, ms", "spread", text),
        ("first step, ms", "first_ms", number),
        ("median of the later ones, ms", "later_ms", number),
        ("n", "n", count),
    ]
    caption = (
        "Mean ± standard deviation of the first steps that a process timed / the very first of them / the median of "
        "the later ones (all ms) / their number, by warm-up steps before them:"
    )
    rows = in_order(rows.assign(spread=_spread(rows)), ["precision", *WORK, "warmup_steps"], ORDERS)
    return Table("warm_up", caption, rows, columns, all_rows=True, across="warm-up steps:")
