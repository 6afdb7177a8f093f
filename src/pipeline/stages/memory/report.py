"""The memory section: what a peak is made of, how it comes about, and what attention and checkpoints make of it."""

from collections.abc import Mapping

import pandas as pd

from pipeline.formulas.peak_memory import CATEGORIES, MODES
from pipeline.report.chart import Axis, Chart
from pipeline.report.formats import count, data_size, gb, ms, number, text
from pipeline.report.frame import alike, in_order, known, with_figures
from pipeline.report.section import Change, Section, say
from pipeline.report.table import MOST_ROWS, Table
from pipeline.report.versus import judge
from pipeline.stages.memory.report_course import course_parts
from pipeline.stages.memory.report_recordings import (
    ATTENTION_WORDS,
    AXES,
    GAIN,
    MODE_WORDS,
    ORDERS,
    STEP,
    beside_first,
    highest,
    time_of,
    timeline,
    words,
)

PLAIN = {"attention": "eager", "checkpoint_every": 0, "num_layers": 0}
VARIANT = ["attention", "checkpointing", "checkpoint_every"]


def build(rows: pd.DataFrame, beside: Mapping[str, pd.DataFrame]) -> Section:
    """Return the section of the memory stage."""
    rows = in_order(rows, AXES, ORDERS)
    every = highest(rows)
    found = with_figures(every)
    if found.empty:
        return Section("Times were measured, but no peak.")
    # Steps of a chosen number of blocks speak for the rest only where nothing else does.
    found = found[found["num_layers"] == found["num_layers"].min()]
    lead = _lead(found[found["size"] == found["size"].mode()[0]])
    shown = alike(every, lead[["size", "num_layers"]].to_dict())
    plain = alike(shown, PLAIN)
    variants = _variants(shown, lead)
    return Section(
        _answer(lead),
        [
            _composition(plain[plain["precision"] == lead["precision"]], lead),
            timeline("timeline", rows, [lead]),
            _steps(variants),
        ],
        _changes(shown, lead),
        for_course=course_parts(rows, shown, plain, lead, variants, every[every["num_layers"] > 0]),
    )


def _lead(found: pd.DataFrame) -> pd.Series:
    """Choose the recording to speak of: rather a training step, rather a plain one, at the longest context, in bf16."""
    plain = (found[list(PLAIN)] == pd.Series(PLAIN, dtype=object)).all(axis=1)
    found = found.assign(mode_place=found["mode"].map(MODES.index), plain=plain, low=found["precision"] == "bf16")
    return found.sort_values(["mode_place", "plain", "context_length", "low"], kind="stable").iloc[-1]


def _answer(lead: pd.Series) -> str:
    made_of = lead[[f"{name}_bytes" for name in CATEGORIES]].astype(float).sort_values(ascending=False)
    kinds = [words(name.removesuffix("_bytes")) for name in made_of.index]
    return say(
        "A {mode} of {size} ({precision}, batch {batch}, context {context}, {attention} attention) peaks at {peak}, "
        "in {phase}: {first_bytes} {first}, {second_bytes} {second}, {third_bytes} {third}.",
        mode=MODE_WORDS[lead["mode"]],
        size=lead["size"],
        precision=lead["precision"],
        batch=count(lead["setting_batch_size"]),
        context=count(lead["context_length"]),
        attention=ATTENTION_WORDS[lead["attention"]],
        peak=data_size(lead["peak_bytes"]),
        phase=lead["phase"],
        **dict(zip(("first", "second", "third"), kinds, strict=False)),
        **{f"{name}_bytes": data_size(size) for name, size in zip(("first", "second", "third"), made_of, strict=False)},
    )


def _composition(plain: pd.DataFrame, lead: pd.Series) -> Chart:
    """Stack what each peak is made of, a bar a context and way to run."""
    labels = [f"{MODE_WORDS[row['mode']]}, {row['context_length']:.0f}" for _, row in plain.iterrows()]
    sizes = {f"{name}_bytes": name for name in CATEGORIES}
    drawn = with_figures(in_order(plain.assign(label=labels), ["mode", "context_length"], ORDERS))
    long = drawn.melt(["label", "phase"], list(sizes), "kind_of_memory", "part_bytes", ignore_index=False)
    long = long.assign(gb=long["part_bytes"] / 1e9, kind_of_memory=long["kind_of_memory"].map(sizes).map(words))
    return Chart(
        "composition",
        f"Memory at the peak by way to run and context ({lead['size']}, {lead['precision']}, plain attention)",
        long,
        "stack",
        Axis("gb", "GB"),
        Axis("label"),
        "kind_of_memory",
        hover={"GB": "gb", "the peak is in": "phase"},
    )


def _variants(shown: pd.DataFrame, lead: pd.Series) -> pd.DataFrame:
    """Return the training steps of contexts with several variants, each beside the first of its context that fits.

    In the precision of the lead, where it has such contexts, else in the first one that does.
    """
    steps = shown[shown["mode"] == STEP]
    steps = steps[steps.groupby(["precision", "context_length"])["mode"].transform("size") > 1]
    precision = lead["precision"] if (steps["precision"] == lead["precision"]).any() else steps["precision"].max()
    steps = in_order(steps[steps["precision"] == precision], ["context_length", *VARIANT], ORDERS)
    groups = [beside_first(group) for _, group in steps.groupby("context_length")]
    return pd.concat(groups) if groups else beside_first(steps)


def _steps(variants: pd.DataFrame) -> Table:
    """Write steps by attention and checkpoints, of the longest contexts for which there is room."""
    shown = variants[variants["checkpoint_every"].isin([0, 1]) & (variants["checkpointing"] == "segments")]
    while len(shown) > MOST_ROWS and shown["context_length"].nunique() > 1:
        shown = shown[shown["context_length"] > shown["context_length"].min()]
    columns = [
        ("context", "context_length", count),
        ("attention", "words", text),
        ("checkpoints (blocks)", "kept", text),
        ("peak GB", "peak_bytes", gb),
        ("GB by formula", "predicted_bytes", gb),
        ("phase of the peak", "phase", text),
        ("step, ms", "median_ms", number),
        *GAIN,
        ("GPUs", "gpus", text),
    ]
    what = ", ".join([*shown["size"].unique(), *shown["precision"].unique()])
    caption = f"Training steps ({what}), against the first of the context that fits; GPUs: of the two times together."
    return Table("variants", caption, shown, columns)


def _changes(shown: pd.DataFrame, lead: pd.Series) -> list[Change]:
    """Return flash attention in place of plain, and of checkpoints where plain needs them."""
    steps = with_figures(shown[(shown["mode"] == STEP) & (shown["precision"] == lead["precision"])])
    steps = known(steps, "median_ms")
    flash = steps[(steps["attention"] == "flash") & (steps["checkpoint_every"] == 0)]
    found = []
    for _, new in flash.iterrows():
        alike = steps[(steps["context_length"] == new["context_length"]) & (steps["attention"] == "eager")]
        for _, old in alike[alike["checkpoint_every"] <= 1].head(1).iterrows():
            if not old["checkpoint_every"] and old["peak_bytes"] <= new["peak_bytes"]:
                continue
            cards = " (two GPUs, one for each time)" if old["cards_ms"] != new["cards_ms"] else ""
            found.append(
                Change(
                    "our flash attention" + (", where plain needs checkpoints" if old["checkpoint_every"] else ""),
                    f"{new['size']}, batch {new['setting_batch_size']:.0f}, context {new['context_length']:.0f}{cards}",
                    f"{ms(old['median_ms'])}, {data_size(old['peak_bytes'])}",
                    f"{ms(new['median_ms'])}, {data_size(new['peak_bytes'])}",
                    judge(time_of(old), time_of(new)) | {"repeats": 1},
                )
            )
    return found
