"""What bf16 autocast gains in each pass, by the width of the model: from the rows of the stage `timing`."""

import pandas as pd

from pipeline.formulas.sizes import SIZES
from pipeline.report.chart import Axis, Chart
from pipeline.report.formats import count, interval, number, text
from pipeline.report.frame import in_order
from pipeline.report.section import Part
from pipeline.report.table import Columns, Table, filled
from pipeline.report.versus import UNDECIDED, versus

PASSES = ("forward", "backward")


def bf16_by_size(timed: pd.DataFrame) -> pd.DataFrame:
    """Put the passes under bf16 autocast beside those in fp32, of the same model, context and batch, smallest first."""
    eager = timed[(timed["mode"] == "eager") & (timed["warmup_steps"] >= 2) & (timed["clock"] == "host")]
    cell = ["size", "context_length", "batch_size", "warmup_steps"]
    whole = eager.loc[eager["phase"] == "train_step", [*cell, "precision", "limited_by"]]
    passes = eager[eager["phase"].isin(PASSES)].drop(columns="limited_by")
    passes = passes.merge(whole, "left", [*cell, "precision"])
    found = versus(passes, [*cell, "phase"], "precision", "bf16", ["fp32"])
    # One batch and warm-up for all models: those that most of them were measured with.
    for name in ("batch_size", "warmup_steps"):
        found = found[found[name] == found[name].mode().max()] if len(found) else found
    same_gpus = found["cards"] == found["cards_peer"]
    found = found.assign(
        width=[SIZES[size].d_model for size in found["size"]],
        gain=[interval(row) for _, row in found.iterrows()],
        limits=(found["limited_by"].astype("string") + " / " + found["limited_by_peer"].astype("string")).astype(
            object
        ),
        both_repeats=[
            f"{own:.0f} / {peer:.0f}" for own, peer in zip(found["repeats"], found["repeats_peer"], strict=True)
        ],
        gpus=same_gpus.map({True: "same", False: "other"}),
    )
    return in_order(found, ["width", "context_length", "phase"], {"phase": PASSES})


def by_size_parts(timed: pd.DataFrame) -> list[Part]:
    """Return the table, of the context that most models were measured with, and the chart; nothing without any."""
    found = bf16_by_size(timed)
    if found.empty:
        return []
    contexts = found.groupby("context_length")["size"].nunique()
    context = contexts[contexts == contexts.max()].index.max()
    here = found[found["context_length"] == context]
    columns: Columns = [
        ("model", "size", text),
        ("width", "width", count),
        ("step limited by: bf16 / fp32", "limits", text),
        ("repeats: bf16 / fp32", "both_repeats", text),
        ("GPUs of both", "gpus", text),
        ("", "phase", text),
        ("fp32 (ms)", "median_ms_peer", number),
        ("bf16 (ms)", "median_ms", number),
        ("times as fast (interval)", "gain", text),
        ("verdict", "verdict", text),
    ]
    caption = (
        f"Batch {here['batch_size'].iloc[0]:.0f}, context {context:.0f}: fp32, ms / bf16 autocast, ms / times as fast "
        "(interval) / verdict:"
    )
    by_host = found[["limited_by", "limited_by_peer"]].eq("host").any(axis=1)
    drawn = found.assign(
        status=((found["verdict"] == UNDECIDED) | by_host).map({True: "unstable", False: "ok"}),
        context=found["context_length"].map("context {:.0f}".format),
    )
    chart = Chart(
        "bf16_by_size_chart",
        "Times as fast under bf16 autocast as in fp32, by the model's width; hollow: undecided, or limited by the host",
        drawn.sort_values(["phase", "context_length"], ascending=[False, True]),
        "line",
        Axis("width", "width of the model"),
        Axis("ratio", "times as fast"),
        "context",
        panel="phase",
        hover={"model": "size", "interval": "gain", "verdict": "verdict", "step limited by: bf16 / fp32": "limits"},
    )
    return [Table("bf16_by_size", caption, here, filled(here, columns), all_rows=True, across=""), chart]
