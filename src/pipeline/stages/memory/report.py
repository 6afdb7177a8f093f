"""The memory section: what a peak is made of, how it comes about, and what attention and checkpoints make of it."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from pipeline.formulas.activations import Workload, residual_stream_bytes
from pipeline.formulas.checkpointing import blocks_run_again, reruns
from pipeline.formulas.peak_memory import CATEGORIES, MODES, peak_bytes, predict_peaks
from pipeline.report.chart import Axis, Chart
from pipeline.report.formats import code, count, data_size, gb, interval, mib, ms, number, text, times
from pipeline.report.frame import alike, card_counts, in_order, known, with_figures
from pipeline.report.section import Change, Section, say
from pipeline.report.table import MOST_ROWS, Table
from pipeline.report.versus import judge
from pipeline.stages.memory.cell import Cell

AXES = ["precision", "size", "context_length", "mode", "attention", "checkpoint_every", "checkpointing", "num_layers"]
STEP, OPTIMIZER = "train_step", "optimizer"
PLAIN = {"attention": "eager", "checkpoint_every": 0, "num_layers": 0}
ORDERS = {
    "precision": ("fp32", "bf16"),
    "mode": MODES,
    "attention": ("eager", "tiled", "flash", "sdpa"),
    "checkpointing": ("segments", "selective", "recursive"),
}
MODE_WORDS = {"inference": "forward, no gradients", "forward": "forward", STEP: "training step"}
ATTENTION_WORDS = {"eager": "plain", "tiled": "tiled", "flash": "our flash", "sdpa": "SDPA"}
LARGEST_SAVED = 5
INTERVALS = (1, 2, 3, 4, 6, 8, 16, 32)
VARIANT = ["attention", "checkpointing", "checkpoint_every"]
GAIN = (("times as fast (interval)", "gain", text), ("verdict", "verdict", text))


def build(rows: pd.DataFrame, beside: Mapping[str, pd.DataFrame]) -> Section:
    """Return the section of the memory stage."""
    rows = in_order(rows, AXES, ORDERS)
    every = _peaks(rows)
    deep = every[every["num_layers"] > 0]
    # Steps of a chosen number of blocks speak for the rest only where nothing else does.
    whole = every[every["num_layers"] == 0]
    whole = whole if len(with_figures(whole)) else every
    size = with_figures(whole)["size"].mode()
    if size.empty:
        return Section("Times were measured, but no peak.")
    shown = whole[whole["size"] == size[0]]
    lead = _lead(shown)
    plain = alike(shown, PLAIN)
    variants = _variants(shown, lead)
    return Section(
        _answer(lead),
        [
            _composition(plain[plain["precision"] == lead["precision"]], lead),
            _timeline("timeline", rows, [lead]),
            _steps(variants),
        ],
        _changes(shown, lead),
        for_course=[
            *_timelines(rows, plain, shown, lead),
            _phases(rows, lead),
            _all_peaks(plain),
            _residual_stream(rows, plain),
            _largest(rows, plain),
            *_block(rows, shown),
            _depth(deep),
            _intervals(variants),
        ],
    )


def _of(rows: pd.DataFrame, kind: str, cell: pd.Series) -> pd.DataFrame:
    """Return the rows of one kind of the recording of a cell."""
    return with_figures(alike(rows[rows["kind"] == kind], cell[AXES].to_dict()))


def _peaks(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a row a cell: the highest phase of its last step, or its outcome.

    Added: `before_update_bytes`, the highest of forward and backward; the time of a step as `versus` takes it, with
    `status_step`; what the formulas predict.
    """
    peaks = rows[rows["kind"] == "peak"]
    last = peaks[peaks["step"].eq(peaks.groupby(AXES)["step"].transform("max")) | peaks["step"].isna()]
    before = last[last["phase"] != OPTIMIZER].groupby(AXES)["peak_bytes"].max().rename("before_update_bytes")
    highest = last.sort_values("peak_bytes", kind="stable").drop_duplicates(AXES, keep="last").sort_index()
    timed = rows[rows["kind"] == "time"].set_index(AXES)
    columns = [
        "median_ms",
        "q1_ms",
        "q3_ms",
        "samples_of_repeats",
        "spread_log_std",
        "spread_degrees",
        "status",
        "cards",
    ]
    timed = timed[columns].rename(columns={"status": "status_ms", "cards": "cards_ms"})
    found = highest.drop(columns=columns[:-2]).join(before, on=AXES).join(timed, on=AXES)
    # A cell that failed does not say where it ran.
    found["device_type"] = found["device_type"].fillna(next(iter(rows["device_type"].dropna()), "cpu"))
    predicted = [peak_bytes(_workload(row), row["mode"]) for _, row in found.iterrows()]
    return found.assign(predicted_bytes=predicted, formula=predicted / found["peak_bytes"]).reset_index(drop=True)


def _workload(row: pd.Series) -> Workload:
    cell = Cell(**{name: row[name] if isinstance(row[name], str) else int(row[name]) for name in AXES})
    return cell.workload(int(row["setting_vocab_size"]), int(row["setting_batch_size"]), row["device_type"])


def _lead(shown: pd.DataFrame) -> pd.Series:
    """Choose the recording to speak of: rather a training step, rather a plain one, at the longest context, in bf16."""
    found = with_figures(shown)
    plain = (found[list(PLAIN)] == pd.Series(PLAIN, dtype=object)).all(axis=1)
    found = found.assign(mode_place=found["mode"].map(MODES.index), plain=plain, low=found["precision"] == "bf16")
    return found.sort_values(["mode_place", "plain", "context_length", "low"], kind="stable").iloc[-1]


def _answer(lead: pd.Series) -> str:
    made_of = lead[[f"{name}_bytes" for name in CATEGORIES]].astype(float).sort_values(ascending=False)
    kinds = [_words(name.removesuffix("_bytes")) for name in made_of.index]
    return say(
        "A {mode} of {size} ({precision}, batch {batch}, context {context}, {attention} attention) peaks at {peak}, "
        "in the phase {phase}: {first_bytes} {first}, {second_bytes} {second}, {third_bytes} {third}.",
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
    long = long.assign(gb=long["part_bytes"] / 1e9, kind_of_memory=long["kind_of_memory"].map(sizes).map(_words))
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


def _timeline(name: str, rows: pd.DataFrame, cells: Sequence[pd.Series], title: str = "") -> Chart:
    """Draw the memory of each kind over the recorded steps, a panel a cell."""
    lines = []
    for cell in cells:
        recorded = known(_of(rows, "timeline", cell), "events", "active_bytes")
        long = recorded[["category", "events", "active_bytes"]].explode(["events", "active_bytes"])
        sums = long.groupby("events", sort=False)["active_bytes"].sum().reset_index().assign(category="total")
        lines.append(pd.concat([sums, long]).assign(panel=_setting(cell)))
    drawn = pd.concat(lines) if lines else pd.DataFrame(columns=["events", "active_bytes", "category", "panel"])
    drawn = drawn.assign(gb=drawn["active_bytes"].astype(float) / 1e9, events=drawn["events"].astype(float))
    drawn = drawn.assign(kind_of_memory=drawn["category"].map(_words))
    return Chart(
        name,
        title or f"Active memory over the recorded steps: {_setting(cells[0])}" if cells else title,
        drawn,
        "line",
        Axis("events", "allocations and releases so far"),
        Axis("gb", "active memory (GB)"),
        "kind_of_memory",
        panel="panel" if drawn["panel"].nunique() > 1 else "",
    )


def _words(kind: str) -> str:
    return kind.replace("_", " ")


def _setting(cell: pd.Series) -> str:
    attention = ATTENTION_WORDS[cell["attention"]]
    return (
        f"{MODE_WORDS[cell['mode']]}, {cell['precision']}, context {cell['context_length']:.0f}, {attention} attention"
    )


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
        _timeline("timeline_forward", rows, forward, "Active memory of forward passes alone"),
        _timeline(
            "timeline_contexts", rows, ends, "Active memory at the shortest and at the longest context that fits"
        ),
    ]


def _phases(rows: pd.DataFrame, lead: pd.Series) -> Table:
    peaks = _of(rows, "peak", lead)
    columns = [
        ("step", "step", count),
        ("phase", "phase", text),
        ("starts after", "begin_event", count),
        ("peak GB", "peak_bytes", gb),
        *((_words(name), f"{name}_bytes", gb) for name in CATEGORIES),
    ]
    caption = f"The highest moment of each phase ({_setting(lead)}), its start on the timeline's axis, and GB by kind:"
    return Table("phases", caption, peaks, columns, all_rows=True)


def _variants(shown: pd.DataFrame, lead: pd.Series) -> pd.DataFrame:
    """Return the training steps of contexts with several variants, each beside the first of its context that fits.

    In the precision of the lead, where it has such contexts, else in the first one that does.
    """
    steps = shown[shown["mode"] == STEP]
    steps = steps[steps.groupby(["precision", "context_length"])["mode"].transform("size") > 1]
    precision = lead["precision"] if (steps["precision"] == lead["precision"]).any() else steps["precision"].max()
    steps = in_order(steps[steps["precision"] == precision], ["context_length", *VARIANT], ORDERS)
    groups = [_beside_first(group) for _, group in steps.groupby("context_length")]
    return pd.concat(groups) if groups else _beside_first(steps)


def _beside_first(steps: pd.DataFrame) -> pd.DataFrame:
    """Add words, and the time of each step beside that of the first one which was timed."""
    timed = known(steps, "median_ms")
    base = _time(timed.iloc[0]) if len(timed) else {}
    judged = [judge(base, _time(row)) if place in timed.index[1:] else {} for place, row in steps.iterrows()]
    both = card_counts(steps.assign(base=base.get("cards_ms")), "cards_ms", "base")
    return steps.assign(
        words=steps["attention"].map(ATTENTION_WORDS),
        kept=[_checkpoints(row) for _, row in steps.iterrows()],
        gain=[interval(pd.Series(each)) if each else None for each in judged],
        verdict=[each.get("verdict") for each in judged],
        gpus=pd.Series(both, steps.index, dtype=object).where(steps["median_ms"].notna()),
    )


def _time(row: pd.Series) -> dict[str, Any]:
    """Return the time of a step as `judge` takes it."""
    return row.to_dict() | {"status": row["status_ms"]}


def _checkpoints(row: pd.Series) -> str:
    every, kind = int(row["checkpoint_every"]), row["checkpointing"]
    if not every:
        return "none"
    words = {"recursive": "recursive", "selective": "attention kept", "segments": ""}[kind]
    return f"every {every}" + (f", {words}" if words else "")


def _steps(variants: pd.DataFrame) -> Table:
    """Write steps by attention and checkpoints, of the longest contexts for which there is room."""
    shown = variants[variants["checkpoint_every"].isin([0, 1])]
    while len(shown) > MOST_ROWS and shown["context_length"].nunique() > 1:
        shown = shown[shown["context_length"] > shown["context_length"].min()]
    columns = [
        ("context", "context_length", count),
        ("attention", "words", text),
        ("checkpoints (blocks)", "kept", text),
        ("peak GB", "peak_bytes", gb),
        ("by formula GB", "predicted_bytes", gb),
        ("peak is in", "phase", text),
        ("step, ms", "median_ms", number),
        *GAIN,
        ("GPUs", "gpus", text),
    ]
    what = ", ".join([*shown["size"].unique(), *shown["precision"].unique()])
    caption = f"Training steps ({what}); times beside the first of the context that fits. GPUs: of both times."
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
            kept = " with checkpoints" if old["checkpoint_every"] else ""
            if not kept and old["peak_bytes"] <= new["peak_bytes"]:
                continue
            cards = " (two GPUs)" if old["cards_ms"] != new["cards_ms"] else ""
            found.append(
                Change(
                    f"our flash attention instead of plain{kept}, for memory",
                    f"{new['size']}, batch {new['setting_batch_size']:.0f}, context {new['context_length']:.0f}{cards}",
                    f"{ms(old['median_ms'])}, {data_size(old['peak_bytes'])}",
                    f"{ms(new['median_ms'])}, {data_size(new['peak_bytes'])}",
                    judge(_time(old), _time(new)) | {"repeats": 1},
                )
            )
    return found


def _all_peaks(plain: pd.DataFrame) -> Table:
    """Write the peak of each way to run and context, fp32 and bf16 beside each other."""
    keys = ["mode", "context_length"]
    sides = [
        plain.loc[plain["precision"] == each, [*keys, "peak_bytes", "status", "formula"]]
        for each in ORDERS["precision"]
    ]
    both = sides[0].merge(sides[1], "outer", keys, suffixes=("_fp32", "_bf16"))
    both = in_order(both, keys, ORDERS).assign(way=lambda rows: rows["mode"].map(MODE_WORDS))
    both = both.assign(ratio_bytes=both["peak_bytes_bf16"] / both["peak_bytes_fp32"])
    columns = [
        ("what", "way", text),
        ("context", "context_length", count),
        ("fp32, GB", "peak_bytes_fp32", gb),
        ("bf16, GB", "peak_bytes_bf16", gb),
        ("bf16 over fp32", "ratio_bytes", times),
        ("formula over fp32", "formula_fp32", times),
        ("formula over bf16", "formula_bf16", times),
    ]
    size = plain["size"].iloc[0] if len(plain) else ""
    return Table("peaks", f"Peaks of {size}, plain attention, measured and by formula:", both, columns, all_rows=True)


def _residual_stream(rows: pd.DataFrame, plain: pd.DataFrame) -> Table:
    """Put one tensor of the residual stream by formula beside what the recording has."""
    lines = []
    for _, cell in (
        with_figures(plain[plain["mode"] != "inference"]).drop_duplicates(["precision", "context_length"]).iterrows()
    ):
        for _, seen in _of(rows, "residual", cell).iterrows():
            workload = _workload(cell)
            lines.append(
                cell.to_dict()
                | {"formula_bytes": residual_stream_bytes(workload), "d_model": workload.size.d_model}
                | {"recorded_bytes": seen["size_bytes"], "count": seen["count"], "blocks": workload.size.num_layers}
            )
    columns = [
        ("model", "size", text),
        ("precision", "precision", text),
        ("batch", "setting_batch_size", count),
        ("context", "context_length", count),
        ("d_model", "d_model", count),
        ("by formula, MiB", "formula_bytes", mib),
        ("recorded, MiB", "recorded_bytes", mib),
        ("blocks", "blocks", count),
        ("such tensors", "count", count),
    ]
    return Table("residual", "One tensor of the residual stream:", pd.DataFrame(lines), columns, all_rows=True)


def _largest(rows: pd.DataFrame, plain: pd.DataFrame) -> Table:
    """List the largest allocations of a forward pass in fp32, rather with gradients, at the longest context."""
    cells = with_figures(plain[plain["mode"] != STEP] if (plain["mode"] != STEP).any() else plain)
    first = in_order(cells, ["precision"], ORDERS).groupby("precision", sort=False).tail(1).head(1)
    found = pd.concat([_of(rows, "largest", cell) for _, cell in first.iterrows()]) if len(first) else rows.head(0)
    columns = [
        ("MiB each", "size_bytes", mib),
        ("how many", "count", count),
        ("kind", "category", text),
        ("made by", "place", code),
        ("line", "code", code),
    ]
    found = found.assign(place=found["location"].astype("string").str.partition(",")[0])
    setting = _setting(first.iloc[0]) if len(first) else ""
    return Table("largest", f"The largest allocations ({setting}):", found.sort_values("rank"), columns)


def _block(rows: pd.DataFrame, shown: pd.DataFrame) -> list[Table]:
    """Write what one block saves, the largest tensors by name, and the gradients of its backward pass."""
    blocks = rows[(rows["kind"] == "block") & rows["size"].isin(shown["size"])]
    blocks = with_figures(blocks).assign(words=lambda found: found["attention"].map(ATTENTION_WORDS))
    longest = blocks.sort_values("context_length", kind="stable").drop_duplicates("attention", keep="last").sort_index()
    largest = [_of(rows, "block_saved", cell).sort_values("rank").head(LARGEST_SAVED) for _, cell in longest.iterrows()]
    saved = pd.concat(largest or [rows.head(0)])
    saved = saved.assign(
        words=saved["attention"].map(ATTENTION_WORDS),
        name=saved["module"].fillna("").replace("", "block") + " " + saved["operation"].astype(str),
        form=["×".join(f"{each:.0f}" for each in shape) for shape in saved["shape"]],
    )
    tensors = [
        ("attention", "words", text),
        ("precision", "precision", text),
        ("context", "context_length", count),
        ("tensor", "name", code),
        ("type", "dtype", text),
        ("shape", "form", text),
        ("MB", "size_bytes", _mb),
    ]
    sums = [
        ("precision", "precision", text),
        ("context", "context_length", count),
        ("attention", "words", text),
        ("saved, MB", "saved_bytes", _mb),
        ("gradients of parameters, MB", "gradients_bytes", _mb),
        ("gradient of its input, MB", "input_gradient_bytes", _mb),
    ]
    return [
        Table("block_saved", "The largest tensors that one block saves:", saved, tensors, all_rows=True),
        Table("block", "What one block saves, and the gradients of its backward pass:", blocks, sums, all_rows=True),
    ]


def _mb(value: float) -> str:
    return number(value / 1e6)


def _depth(deep: pd.DataFrame) -> Table:
    """Write checkpoints by the number of blocks: what is alive, what runs again, memory and time."""
    groups = [
        _beside_first(group)
        for _, group in deep.groupby(["size", "precision", "context_length", "num_layers"], sort=True)
    ]
    shown = pd.concat(groups) if groups else deep.assign(kept=None, gain=None, verdict=None)
    of = [(int(row["num_layers"]), int(row["checkpoint_every"]), row["checkpointing"]) for _, row in shown.iterrows()]
    shown = shown.assign(
        inputs=[1 + max(rerun.inputs for rerun in reruns(*each)) if each[1] else None for each in of],
        again=[blocks_run_again(*each) for each in of],
        # What checkpoints can lower: all but parameters and moments.
        lowered_bytes=shown["before_update_bytes"] - shown["parameters_bytes"] - shown["optimizer_state_bytes"],
    )
    columns = [
        ("blocks", "num_layers", count),
        ("checkpoints", "kept", text),
        ("inputs alive, most", "inputs", count),
        ("blocks run again", "again", count),
        ("peak GB beside those", "lowered_bytes", gb),
        ("step, ms", "median_ms", number),
        *GAIN,
    ]
    caption = "Checkpoints by depth, times beside none; memory of forward and backward beside parameters and moments:"
    return Table("depth", caption, shown, columns, all_rows=True)


def _intervals(variants: pd.DataFrame) -> Table:
    """Write the highest of forward and backward by the blocks between two checkpoints: by formula, and measured."""
    measured = variants[(variants["checkpoint_every"] > 0) & (variants["checkpointing"] == "segments")]
    lines = []
    for (_, attention), group in measured.groupby(["context_length", "attention"], sort=False):
        first, known_intervals = group.iloc[0], group.set_index("checkpoint_every")
        layers = _workload(first).size.num_layers
        for every in sorted({*INTERVALS, *known_intervals.index}):
            row = first.to_dict() | {"checkpoint_every": every, "before_update_bytes": None, "median_ms": None}
            found = known_intervals.loc[every].to_dict() if every in known_intervals.index else {}
            if every <= layers:
                moments = predict_peaks(_workload(pd.Series(row)), STEP)
                formula = max(moments[phase].total_bytes for phase in ("forward", "backward"))
                lines.append(row | found | {"attention": attention, "formula_bytes": formula})
    columns = [
        ("context", "context_length", count),
        ("attention", "words", text),
        ("blocks between", "checkpoint_every", count),
        ("by formula, GB", "formula_bytes", gb),
        ("measured, GB", "before_update_bytes", gb),
        ("step, ms", "median_ms", number),
    ]
    caption = "The peak of forward and backward by the number of blocks between two checkpoints:"
    return Table("intervals", caption, pd.DataFrame(lines), columns, all_rows=True)
