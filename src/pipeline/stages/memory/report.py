"""The memory section: what a peak is made of, how it comes about, and what attention and checkpoints make of it."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from pipeline.formulas.activations import Workload, residual_stream_bytes
from pipeline.formulas.checkpointing import blocks_run_again, reruns
from pipeline.formulas.peak_memory import CATEGORIES, MODES, predict_peaks
from pipeline.report.chart import Axis, Chart
from pipeline.report.formats import code, written
from pipeline.report.frame import alike, card_counts, in_order, known, with_figures
from pipeline.report.section import Change, Section, say
from pipeline.report.table import MOST_ROWS, Columns, Table, named
from pipeline.report.versus import JUDGED, beside
from pipeline.stages.memory.cell import Cell

AXES = ["precision", "size", "context_length", "mode", "attention", "checkpointing", "checkpoint_every", "num_layers"]
MODEL = ["precision", "size", "context_length", "num_layers"]
STEP, OPTIMIZER = "train_step", "optimizer"
WORDS = {
    "mode": {"inference": "forward, no gradients", "forward": "forward", STEP: "training step"},
    "attention": {"eager": "plain", "tiled": "tiled", "flash": "our flash", "sdpa": "SDPA"},
    "checkpointing": {"segments": "", "selective": ", attention kept", "recursive": ", recursive"},
}
ORDERS = {"precision": ("fp32", "bf16"), **{name: tuple(words) for name, words in WORDS.items()}}
SETTING = "{what}, {precision}, context {context_length}, {with_attention} attention"
TOLD = {"what": "mode", "with_attention": "attention", "kept": "checkpointing"}
KINDS = {f"{name}_bytes": name.replace("_", " ") for name in CATEGORIES}
PLAIN = {"attention": "eager", "checkpoint_every": 0, "num_layers": 0}
MOST_ALLOCATIONS = 4
BLOCK_SUMS = {
    "saved_bytes": "all that it saves",
    "gradients_bytes": "gradients of its parameters",
    "input_gradient_bytes": "gradient of its input",
}


def build(rows: pd.DataFrame, _: Mapping[str, pd.DataFrame]) -> Section:
    """Return the section of the memory stage."""
    rows = in_order(rows, AXES, ORDERS)
    rows = rows.assign(**{name: rows[key].map(WORDS[key]) for name, key in TOLD.items()})
    rows = rows.assign(setting=written(rows, SETTING))
    every = highest(rows)
    found = with_figures(every)
    if found.empty:
        return Section("Times were measured, but no peak.")
    # Steps of a chosen number of blocks speak for the rest only where nothing else does.
    found = found[found["num_layers"] == found["num_layers"].min()]
    lead = _lead(found[found["size"] == found["size"].mode()[0]])
    shown = alike(every, lead[["size", "num_layers"]].to_dict())
    plain = alike(shown, PLAIN)
    steps = alike(shown, {"mode": STEP, "precision": lead["precision"]})
    variants = _variants(shown[shown["mode"] == STEP], lead["precision"])
    return Section(
        _answer(lead),
        [
            _composition(plain[plain["precision"] == lead["precision"]]),
            _steps("variants", variants[variants["checkpoint_every"] <= 1]),
        ],
        _changes(with_figures(steps), every),
        for_course=[
            _timelines(rows, plain, steps, found.loc[[lead.name]]),
            _all_peaks(shown[shown["checkpoint_every"] == 0]),
            _residual_stream(rows, plain),
            _largest(rows, plain),
            _block(rows, shown),
            _depth(every[every["num_layers"] > 0]),
            _steps("intervals", variants[variants["context_length"] == variants["context_length"].max()]),
        ],
    )


def highest(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a row a cell: the highest phase of its last step, or its outcome, and what the formulas give.

    Added also: a step's time, with `status_ms` and `cards_ms`, beside the first of its model and context that fits.
    """
    peaks = rows[rows["kind"] == "peak"]
    last = peaks[peaks["step"].eq(peaks.groupby(AXES)["step"].transform("max")) | peaks["step"].isna()]
    before = last[last["phase"] != OPTIMIZER].groupby(AXES)["peak_bytes"].max().rename("before_update_bytes")
    found = last.sort_values("peak_bytes", kind="stable").drop_duplicates(AXES, keep="last").sort_index()
    timed = rows[rows["kind"] == "time"].set_index(AXES)[[*JUDGED, "cards"]]
    timed = timed.rename(columns={"status": "status_ms", "cards": "cards_ms"})
    found = found.drop(columns=list(timed), errors="ignore").join(before, on=AXES).join(timed, on=AXES)
    # A cell that failed does not say where it ran.
    found["device_type"] = found["device_type"].fillna(next(iter(rows["device_type"].dropna()), "cpu"))
    moments = [predict_peaks(_workload(row), row["mode"]) for _, row in found.iterrows()]
    every = beside(found.assign(status=found["status_ms"]), MODEL, pd.Series(True, found.index))
    cards = card_counts(every.assign(base_cards=every["base"].map(every["cards_ms"])), "cards_ms", "base_cards")
    checkpoints = pd.Series(written(every, "every {checkpoint_every}{kept}"), every.index)
    return every.assign(
        status=found["status"],
        checkpoints=checkpoints.where(every["checkpoint_every"] > 0, "none"),
        gpus=pd.Series(cards, every.index).map(str).where(every["median_ms"].notna()),
        by_formula_bytes=[max(moment.total_bytes for moment in each.values()) for each in moments],
    )


def _workload(row: pd.Series) -> Workload:
    """Return what the formulas take of a cell."""
    axes: dict[str, Any] = {name: row[name] if isinstance(row[name], str) else int(row[name]) for name in AXES}
    cell = Cell(**axes)
    return cell.workload(int(row["setting_vocab_size"]), int(row["setting_batch_size"]), row["device_type"])


def _of(rows: pd.DataFrame, kind: str, cells: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of one kind of the recordings of cells."""
    return with_figures(rows[rows["kind"] == kind]).merge(cells[AXES], on=AXES)


def _lead(found: pd.DataFrame) -> pd.Series:
    """Choose the recording to speak of: rather a training step, rather a plain one, at the longest context, in bf16."""
    plain = (found[list(PLAIN)] == pd.Series(PLAIN, dtype=object)).all(axis=1)
    found = found.assign(mode_place=found["mode"].map(MODES.index), plain=plain, low=found["precision"] == "bf16")
    return found.sort_values(["mode_place", "plain", "context_length", "low"], kind="stable").iloc[-1]


def _answer(lead: pd.Series) -> str:
    made_of = lead[list(KINDS)].astype(float).nlargest(3)
    return say(
        "A {lead[what]} of {lead[size]} ({lead[precision]}, batch {lead[setting_batch_size]:count}, context "
        "{lead[context_length]:count}, {lead[with_attention]} attention) peaks at {lead[peak_bytes]:data_size}, in "
        "{lead[phase]}: {size[0]:data_size} {kind[0]}, {size[1]:data_size} {kind[1]}, {size[2]:data_size} {kind[2]}.",
        lead=lead,
        size=[*made_of],
        kind=[KINDS[name] for name in made_of.index],
    )


def _composition(plain: pd.DataFrame) -> Chart:
    """Stack what each peak is made of, a bar a context and way to run."""
    drawn = with_figures(in_order(plain, ["mode", "context_length"], ORDERS)).rename(columns=KINDS)
    drawn = drawn.assign(label=written(drawn, "{what}, {context_length}"))
    long = drawn.melt(["label", "phase"], list(KINDS.values()), "kind_of_memory", "part_bytes")
    title = f"Memory at the peak by way to run and context ({_what(plain)}, plain attention)"
    axes, hover = (Axis("gb", "GB"), Axis("label")), {"GB": "gb", "the peak is in": "phase"}
    long = long.assign(gb=long["part_bytes"] / 1e9)
    return Chart("composition", title, long, "stack", *axes, "kind_of_memory", hover=hover)


def _what(cells: pd.DataFrame) -> str:
    return ", ".join([*cells["size"].unique(), *cells["precision"].unique()])


def _timeline(name: str, title: str, rows: pd.DataFrame, cells: pd.DataFrame) -> Chart:
    """Draw the memory of each kind over the recorded steps, a panel a cell."""
    recorded = known(_of(rows, "timeline", cells), "events", "active_bytes").explode(["events", "active_bytes"])
    recorded = recorded.assign(events=recorded["events"].astype(float), gb=recorded["active_bytes"].astype(float) / 1e9)
    total = recorded.groupby(["setting", "events"], sort=False, as_index=False)["gb"].sum().assign(category="total")
    drawn = pd.concat([total, recorded[[*total]]])
    drawn = drawn.assign(kind_of_memory=drawn["category"].str.replace("_", " "))
    axes = Axis("events", "allocations and releases so far"), Axis("gb", "active memory (GB)")
    panel = "setting" if drawn["setting"].nunique() > 1 else ""
    return Chart(name, title.format(**cells.iloc[0]), drawn, "line", *axes, "kind_of_memory", panel=panel)


def _timelines(rows: pd.DataFrame, plain: pd.DataFrame, steps: pd.DataFrame, lead: pd.DataFrame) -> Chart:
    """Draw forward passes alone beside the step, and steps at the shortest and the longest context that has one."""
    ends = with_figures(steps[steps["checkpoint_every"] == 0]).drop_duplicates("context_length")
    forward = with_figures(plain[plain["mode"] != STEP]).merge(lead[["precision", "context_length"]])
    cells = pd.concat([forward, lead, ends.head(1), ends.tail(1)]).drop_duplicates(AXES)
    title = "Active memory: forward passes alone, a step; steps at the shortest and at the longest context that fits"
    return _timeline("timelines", title, rows, cells)


def _variants(steps: pd.DataFrame, precision: str) -> pd.DataFrame:
    """Return steps of contexts with several: in this precision, or the one that has such."""
    several = steps[steps.groupby(["precision", "context_length"])["mode"].transform("size") > 1]
    own = several["precision"] == precision
    return several[(own if own.any() else ~own) & (several["checkpointing"] == "segments")]


def _steps(name: str, shown: pd.DataFrame) -> Table:
    """Write steps by attention and checkpoints, of the longest contexts for which there is room."""
    while len(shown) > MOST_ROWS and shown["context_length"].nunique() > 1:
        shown = shown[shown["context_length"] > shown["context_length"].min()]
    names = "context_length with_attention checkpoints peak_bytes by_formula_bytes before_update_bytes median_ms gain"
    caption = (
        f"Training steps ({_what(shown)}) beside the first of the context that fits; before update: the peak of "
        "forward and backward; GPUs: of both times together."
    )
    return Table(name, caption, shown, named(shown, f"{names} verdict gpus"))


def _changes(steps: pd.DataFrame, every: pd.DataFrame) -> list[Change]:
    """Return flash attention in place of plain that needs checkpoints; of flash attention alone the levers tell."""
    flash = known(steps[(steps["attention"] == "flash") & (steps["checkpoint_every"] == 0)], "ratio")
    found = []
    for old, new in ((every.loc[row["base"]], row) for _, row in flash.iterrows()):
        if old["attention"] == "eager" and old["checkpoint_every"]:
            cards = " (two GPUs, one for each time)" if old["cards_ms"] != new["cards_ms"] else ""
            where = f"{new['size']}, batch {new['setting_batch_size']:.0f}, context {new['context_length']}{cards}"
            found.append(Change.between("our flash attention, where plain needs checkpoints", where, old, new))
    return found


def _all_peaks(cells: pd.DataFrame) -> Table:
    """Write the peak of each way to run and context, fp32 above bf16."""
    cells = in_order(cells, ["mode", "attention", "precision", "context_length"], ORDERS)
    names = "what with_attention precision context_length peak_bytes by_formula_bytes"
    caption = f"Peaks of {', '.join(cells['size'].unique())}, as recorded / by formula:"
    return Table("peaks", caption, cells, named(cells, names), all_rows=True, across="context")


def _residual_stream(rows: pd.DataFrame, plain: pd.DataFrame) -> Table:
    """Put one tensor of the residual stream by formula beside what the recording has."""
    cells = with_figures(plain[plain["mode"] != "inference"]).drop_duplicates(["precision", "context_length"])
    seen = _of(rows, "residual", cells)
    works = [_workload(row) for _, row in seen.iterrows()]
    seen = seen.assign(
        d_model=[work.size.d_model for work in works],
        by_formula_mib=[residual_stream_bytes(work) / 2**20 for work in works],
        recorded_mib=seen["size_bytes"] / 2**20,
    )
    names = "size precision setting_batch_size d_model context_length by_formula_mib recorded_mib count"
    columns = named(seen, names, setting_batch_size="batch")
    caption = "One tensor of the residual stream: by formula, MiB / as recorded, MiB / how many were:"
    return Table("residual", caption, seen, columns, all_rows=True, across="context")


def _largest(rows: pd.DataFrame, plain: pd.DataFrame) -> Table:
    """List the largest allocations of a forward pass in fp32, rather with gradients, at the longest context."""
    cells = with_figures(plain[plain["mode"] != STEP] if (plain["mode"] != STEP).any() else plain)
    first = in_order(cells, ["precision"], ORDERS).groupby("precision", sort=False).tail(1).head(1)
    found = _of(rows, "largest", first).sort_values("rank")
    found = found.assign(made_by=found["location"].str.split(",").str[0])
    same = ["size_bytes", "category", "made_by", "code"]
    found = found.assign(how_many=found.groupby(same)["count"].transform("sum")).drop_duplicates(same)
    shown: Columns = [
        *named(found, "size_bytes how_many category", size_bytes="each"),
        ("made by", "made_by", code),
        ("line", "code", code),
    ]
    caption = f"The largest allocations ({', '.join(first['setting'])}):"
    return Table("largest", caption, found.head(MOST_ALLOCATIONS), shown)


def _block(rows: pd.DataFrame, shown: pd.DataFrame) -> Table:
    """Write what one block saves at the longest context: the largest tensors by name, their sum, and its gradients."""
    blocks = with_figures(rows[(rows["kind"] == "block") & rows["size"].isin(shown["size"])])
    blocks = blocks.sort_values("context_length", kind="stable").drop_duplicates("attention", keep="last").sort_index()
    saved = _of(rows, "block_saved", blocks).sort_values(["attention", "rank"], kind="stable")
    saved = saved[saved["rank"] <= MOST_ALLOCATIONS]
    saved = saved.assign(
        one_block=written(saved, "largest, {rank:.0f}"), module=saved["module"].fillna("").replace("", "block")
    )
    saved = saved.assign(tensor=written(saved, ": {module} {operation}, {dtype} {shape}"))
    sums = [blocks.assign(one_block=what, size_bytes=blocks[name], tensor="") for name, what in BLOCK_SUMS.items()]
    both = in_order(pd.concat([saved, *sums]), ["attention"], ORDERS)
    both = both.assign(
        setting=written(both, "{with_attention}, {precision}, {context_length:,}"),
        cell=written(both, "{size_bytes:data_size}{tensor}"),
    )
    columns = named(both, "one_block setting cell", setting="", cell="")
    caption = "What one block saves for backward, and its gradients, by attention, precision, context:"
    return Table("block", caption, both, columns, all_rows=True, across="")


def _depth(deep: pd.DataFrame) -> Table:
    """Write checkpoints by the number of blocks: what is alive, what runs again, memory and time."""
    deep = in_order(deep[deep["checkpointing"] != "selective"], ["num_layers", "checkpoint_every"], {})
    of = [*deep[["num_layers", "checkpoint_every", "checkpointing"]].itertuples(index=False, name=None)]
    deep = deep.rename(columns={"num_layers": "blocks"}).assign(
        inputs=[1 + max(rerun.inputs for rerun in reruns(*each)) if each[1] else None for each in of],
        again=[blocks_run_again(*each) for each in of],
        # What checkpoints can lower: all but parameters and moments.
        lowered_bytes=deep["before_update_bytes"] - deep["parameters_bytes"] - deep["optimizer_state_bytes"],
    )
    caption = (
        "Inputs alive at most / blocks run again / peak of forward and backward without parameters and moments / "
        "step, ms / times as fast as with none (interval) / verdict, by number of blocks:"
    )
    names = "checkpoints blocks inputs again lowered_bytes median_ms gain verdict"
    return Table("depth", caption, deep, named(deep, names), all_rows=True, across="blocks")
