"""The tables and charts of the memory stage that the course's page alone shows."""

import pandas as pd

from pipeline.formulas.activations import residual_stream_bytes
from pipeline.formulas.checkpointing import blocks_run_again, reruns
from pipeline.formulas.peak_memory import CATEGORIES, predict_peaks
from pipeline.report.chart import Chart
from pipeline.report.formats import code, count, gb, mib, number, text, times
from pipeline.report.frame import in_order, with_figures
from pipeline.report.section import Part
from pipeline.report.table import Columns, Table
from pipeline.stages.memory.report_recordings import (
    ATTENTION_WORDS,
    GAIN,
    MODE_WORDS,
    ORDERS,
    STEP,
    beside_first,
    of_cell,
    setting_words,
    timeline,
    words,
    workload,
)

LARGEST, LARGEST_SAVED = 5, 5
INTERVALS = (1, 2, 3, 4, 6, 8, 16, 32)


def course_parts(
    rows: pd.DataFrame,
    shown: pd.DataFrame,
    plain: pd.DataFrame,
    lead: pd.Series,
    variants: pd.DataFrame,
    deep: pd.DataFrame,
) -> list[Part]:
    """Return the parts.

    rows: all of the stage; shown: the cells of the main model, as `highest` gives them; plain: those with plain
    attention and without checkpoints; lead: the cell to speak of; variants: steps by attention and checkpoints; deep:
    steps of a chosen number of blocks.
    """
    return [
        *_timelines(rows, plain, shown, lead),
        _phases(rows, lead),
        _all_peaks(shown[shown["checkpoint_every"] == 0]),
        _residual_stream(rows, plain),
        _largest(rows, plain),
        *_block(rows, shown),
        _depth(deep),
        _intervals(variants),
    ]


def _timelines(rows: pd.DataFrame, plain: pd.DataFrame, shown: pd.DataFrame, lead: pd.Series) -> list[Chart]:
    """Draw forward passes alone beside the step, and steps at the shortest and the longest context that has one."""
    alike = with_figures(
        plain[(plain["precision"] == lead["precision"]) & (plain["context_length"] == lead["context_length"])]
    )
    forward = [row for _, row in alike.iterrows() if row["mode"] != STEP]
    steps = with_figures(shown[(shown["mode"] == STEP) & (shown["precision"] == lead["precision"])])
    steps = steps[(steps["checkpoint_every"] == 0)].sort_values("context_length", kind="stable")
    ends = (
        [row for _, row in steps.drop_duplicates("context_length").iloc[[0, -1]].iterrows()] if len(steps) > 1 else []
    )
    return [
        timeline("timeline_forward", rows, forward, "Active memory of forward passes alone"),
        timeline("timeline_contexts", rows, ends, "Active memory at the shortest and at the longest context that fits"),
    ]


def _phases(rows: pd.DataFrame, lead: pd.Series) -> Table:
    peaks = of_cell(rows, "peak", lead)
    peaks = peaks[peaks["step"] == peaks["step"].max()]
    columns: Columns = [
        ("phase", "phase", text),
        ("starts after", "begin_event", count),
        ("peak GB", "peak_bytes", gb),
        *((words(name), f"{name}_bytes", gb) for name in CATEGORIES),
    ]
    caption = (
        f"The highest moment of each phase of the last step ({setting_words(lead)}), its start on the timeline's axis, "
        "and GB by kind:"
    )
    return Table("phases", caption, peaks, columns, all_rows=True)


def _all_peaks(cells: pd.DataFrame) -> Table:
    """Write the peak of each way to run and context, fp32 and bf16 beside each other."""
    keys = ["mode", "attention", "context_length"]
    sides = [
        cells.loc[cells["precision"] == each, [*keys, "peak_bytes", "status", "formula"]]
        for each in ORDERS["precision"]
    ]
    both = sides[0].merge(sides[1], "outer", keys, suffixes=("_fp32", "_bf16"))
    both = in_order(both, keys, ORDERS).assign(
        way=lambda rows: rows["mode"].map(MODE_WORDS) + ", " + rows["attention"].map(ATTENTION_WORDS)
    )
    both = both.assign(ratio_bytes=both["peak_bytes_bf16"] / both["peak_bytes_fp32"])
    columns: Columns = [
        ("what", "way", text),
        ("context", "context_length", count),
        ("fp32, GB", "peak_bytes_fp32", gb),
        ("bf16, GB", "peak_bytes_bf16", gb),
        ("bf16 over fp32", "ratio_bytes", times),
        ("formula over fp32", "formula_fp32", times),
        ("formula over bf16", "formula_bf16", times),
    ]
    caption = (
        f"Peaks of {cells['size'].iloc[0] if len(cells) else ''}: fp32, GB / bf16, GB / bf16 over "
        "fp32 / the formula over what was measured in fp32 / in bf16:"
    )
    return Table("peaks", caption, both, columns, all_rows=True, across="context")


def _residual_stream(rows: pd.DataFrame, plain: pd.DataFrame) -> Table:
    """Put one tensor of the residual stream by formula beside what the recording has."""
    lines = []
    for _, cell in (
        with_figures(plain[plain["mode"] != "inference"]).drop_duplicates(["precision", "context_length"]).iterrows()
    ):
        for _, seen in of_cell(rows, "residual", cell).iterrows():
            work = workload(cell)
            lines.append(
                cell.to_dict()
                | {"formula_bytes": residual_stream_bytes(work), "d_model": work.size.d_model}
                | {"recorded_bytes": seen["size_bytes"], "count": seen["count"], "blocks": work.size.num_layers}
            )
    columns: Columns = [
        ("model", "size", text),
        ("precision", "precision", text),
        ("batch", "setting_batch_size", count),
        ("d_model", "d_model", count),
        ("blocks", "blocks", count),
        ("context", "context_length", count),
        ("by formula, MiB", "formula_bytes", mib),
        ("recorded, MiB", "recorded_bytes", mib),
        ("such tensors", "count", count),
    ]
    caption = "One tensor of the residual stream: by formula, MiB / as recorded, MiB / how many were:"
    return Table("residual", caption, pd.DataFrame(lines), columns, all_rows=True, across="context")


def _largest(rows: pd.DataFrame, plain: pd.DataFrame) -> Table:
    """List the largest allocations of a forward pass in fp32, rather with gradients, at the longest context."""
    cells = with_figures(plain[plain["mode"] != STEP] if (plain["mode"] != STEP).any() else plain)
    first = in_order(cells, ["precision"], ORDERS).groupby("precision", sort=False).tail(1).head(1)
    found = pd.concat([of_cell(rows, "largest", cell) for _, cell in first.iterrows()]) if len(first) else rows.head(0)
    columns: Columns = [
        ("MiB each", "size_bytes", mib),
        ("how many", "count", count),
        ("kind", "category", text),
        ("made by", "place", code),
        ("line", "code", code),
    ]
    found = found.assign(place=found["location"].map(lambda place: place.partition(",")[0]))
    alike = ["size_bytes", "category", "place", "code"]
    found = found.sort_values("rank")
    found = found.assign(count=found.groupby(alike)["count"].transform("sum")).drop_duplicates(alike)
    setting = setting_words(first.iloc[0]) if len(first) else ""
    return Table("largest", f"The largest allocations ({setting}):", found.head(LARGEST), columns)


def _block(rows: pd.DataFrame, shown: pd.DataFrame) -> list[Table]:
    """Write what one block saves, the largest tensors by name, and the gradients of its backward pass."""
    blocks = rows[(rows["kind"] == "block") & rows["size"].isin(shown["size"])]
    blocks = with_figures(blocks).assign(words=lambda found: found["attention"].map(ATTENTION_WORDS))
    longest = blocks.sort_values("context_length", kind="stable").drop_duplicates("attention", keep="last").sort_index()
    largest = [
        of_cell(rows, "block_saved", cell).sort_values("rank").head(LARGEST_SAVED) for _, cell in longest.iterrows()
    ]
    saved = pd.concat(largest or [rows.head(0)])
    saved = saved.assign(
        setting=[
            f"{ATTENTION_WORDS[row['attention']]}, {row['precision']}, {row['context_length']:,.0f}"
            for _, row in saved.iterrows()
        ],
        place=saved.groupby("attention", sort=False).cumcount() + 1,
        name=saved["module"].fillna("").replace("", "block") + " " + saved["operation"].astype(str),
        form=["×".join(f"{each:.0f}" for each in shape) for shape in saved["shape"]],
    )
    tensors: Columns = [
        ("largest", "place", count),
        ("", "setting", text),
        ("tensor", "name", code),
        ("type", "dtype", text),
        ("shape", "form", text),
        ("MB", "size_bytes", _mb),
    ]
    sums: Columns = [
        ("attention", "words", text),
        ("precision", "precision", text),
        ("gradients of a block's parameters, MB", "gradients_bytes", _mb),
        ("context", "context_length", count),
        ("saved, MB", "saved_bytes", _mb),
        ("gradient of its input, MB", "input_gradient_bytes", _mb),
    ]
    largest_words = (
        "The largest tensors that one block saves, by attention, precision, context: name / type / shape / MB:"
    )
    all_words = "All that one block saves for backward / the gradient of its input, MB:"
    return [
        Table("block_saved", largest_words, saved, tensors, all_rows=True, across=""),
        Table("block", all_words, blocks, sums, all_rows=True, across="context"),
    ]


def _mb(value: float) -> str:
    return number(value / 1e6)


def _depth(deep: pd.DataFrame) -> Table:
    """Write checkpoints by the number of blocks: what is alive, what runs again, memory and time."""
    groups = [
        beside_first(group)
        for _, group in deep.groupby(["size", "precision", "context_length", "num_layers"], sort=True)
    ]
    shown = pd.concat(groups) if groups else deep.assign(kept=None, gain=None, verdict=None)
    shown = shown[shown["checkpointing"] != "selective"]
    of = [(int(row["num_layers"]), int(row["checkpoint_every"]), row["checkpointing"]) for _, row in shown.iterrows()]
    shown = shown.assign(
        inputs=[1 + max(rerun.inputs for rerun in reruns(*each)) if each[1] else None for each in of],
        again=[blocks_run_again(*each) for each in of],
        # What checkpoints can lower: all but parameters and moments.
        lowered_bytes=shown["before_update_bytes"] - shown["parameters_bytes"] - shown["optimizer_state_bytes"],
    )
    columns = [
        ("checkpoints", "kept", text),
        ("blocks", "num_layers", count),
        ("inputs alive, most", "inputs", count),
        ("blocks run again", "again", count),
        ("peak GB beside those", "lowered_bytes", gb),
        ("step, ms", "median_ms", number),
        *GAIN,
    ]
    caption = (
        "Inputs alive at most / blocks run again / peak of forward and backward without parameters and moments, GB / "
        "step, ms / times as fast as with none (interval) / verdict, by number of blocks:"
    )
    return Table("depth", caption, shown, columns, all_rows=True, across="blocks")


def _intervals(variants: pd.DataFrame) -> Table:
    """Write the highest of forward and backward by the blocks between two checkpoints: by formula, and measured."""
    measured = variants[(variants["checkpoint_every"] > 0) & (variants["checkpointing"] == "segments")]
    measured = measured[measured["context_length"] == measured["context_length"].max()]
    lines = []
    for (_, attention), group in measured.groupby(["context_length", "attention"], sort=False):
        first, known_intervals = group.iloc[0], group.set_index("checkpoint_every")
        layers = workload(first).size.num_layers
        for every in sorted({*INTERVALS, *known_intervals.index}):
            row = first.to_dict() | {"checkpoint_every": every, "before_update_bytes": None, "median_ms": None}
            found = known_intervals.loc[every].to_dict() if every in known_intervals.index else {}
            if every <= layers:
                moments = predict_peaks(workload(pd.Series(row)), STEP)
                formula = max(moments[phase].total_bytes for phase in ("forward", "backward"))
                lines.append(row | found | {"attention": attention, "formula_bytes": formula})
    columns: Columns = [
        ("context", "context_length", count),
        ("attention", "words", text),
        ("blocks between:", "checkpoint_every", count),
        ("by formula, GB", "formula_bytes", gb),
        ("measured, GB", "before_update_bytes", gb),
        ("step, ms", "median_ms", number),
    ]
    caption = (
        "The peak of forward and backward, GB, by formula / measured / the step, ms, by blocks between checkpoints:"
    )
    return Table("intervals", caption, pd.DataFrame(lines), columns, all_rows=True, across="blocks between:")
