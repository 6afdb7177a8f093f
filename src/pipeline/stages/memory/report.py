"""The memory section: what a peak is made of, how it comes about, and what attention and checkpoints make of it."""

from collections.abc import Mapping

import pandas as pd

from pipeline.formulas.activations import Workload, residual_stream_bytes
from pipeline.formulas.checkpointing import blocks_run_again, reruns
from pipeline.formulas.peak_memory import CATEGORIES, predict_peaks
from pipeline.formulas.sizes import SIZES
from pipeline.report.chart import Axis, Chart
from pipeline.report.formats import written
from pipeline.report.frame import alike, card_counts, in_order, known, with_figures
from pipeline.report.section import Change, Section, say
from pipeline.report.table import MOST_ROWS, Table
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
DEPTH = (
    "Steps of {size} (d_model {d_model}, {precision}, batch {setting_batch_size}, context {context_length:count}, "
    "{with_attention} attention), by number of blocks: inputs alive at most / blocks run again / activations at the "
    "fullest moment of forward and backward / times as fast as with no checkpoints (interval):"
)
KINDS = {f"{name}_bytes": name.replace("_", " ") for name in CATEGORIES}
PLAIN = {"attention": "eager", "checkpoint_every": 0, "num_layers": 0}
MOST_ALLOCATIONS = 4
BLOCK_SUMS = {"saved": "all that it saves", "gradients": "its gradients", "input_gradient": "gradient of its input"}
BESIDE_FIRST = (
    "Ratios are against the first row of the same context that fits. Before update is the peak of forward and "
    "backward. GPUs: 2 means that the two times come from different GPUs."
)


def build(rows: pd.DataFrame, _: Mapping[str, pd.DataFrame]) -> Section:
    """Return the section of the memory stage."""
    rows = in_order(rows, AXES, ORDERS)
    told = {"what": "mode", "with_attention": "attention", "kept": "checkpointing"}
    rows = rows.assign(**{name: rows[key].map(WORDS[key]) for name, key in told.items()})
    rows = rows.assign(
        setting=written(rows, "{what}, {precision}, context {context_length}, {with_attention} attention")
    )
    every = highest(rows)
    found = with_figures(every)
    if found.empty:
        return Section("Times were measured, but no peak.")
    # Steps of a chosen number of blocks speak for the rest only where nothing else does.
    found = found[found["num_layers"] == found["num_layers"].min()]
    lead = _lead(found[found["size"] == found["size"].mode()[0]])
    shown = alike(every, lead[["size", "num_layers"]].to_dict())
    plain, steps = alike(shown, PLAIN), shown[shown["mode"] == STEP]
    here = steps[steps["precision"] == lead["precision"]]
    variants = _variants(steps, lead["precision"])
    return Section(
        _answer(lead),
        [
            _composition(plain[plain["precision"] == lead["precision"]]),
            _steps("variants", variants[variants["checkpoint_every"] <= 1]),
        ],
        _changes(with_figures(here), every),
        for_course=[
            _timelines(rows, plain, here, found.loc[[lead.name]]),
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
    before = last[last["phase"] != OPTIMIZER].groupby(AXES)[["peak_bytes", "activations_bytes"]].max()
    before.columns = ["before_update_bytes", "most_activations_bytes"]
    found = last.sort_values("peak_bytes", kind="stable").drop_duplicates(AXES, keep="last").sort_index()
    timed = rows[rows["kind"] == "time"].set_index(AXES)[[*JUDGED, "cards"]]
    timed = timed.rename(columns={"status": "status_ms", "cards": "cards_ms"})
    found = found.drop(columns=list(timed), errors="ignore").join(before, on=AXES).join(timed, on=AXES)
    # A cell that failed does not say where it ran.
    found["device_type"] = found["device_type"].fillna(next(iter(rows["device_type"].dropna()), "cpu"))
    every = beside(found.assign(status=found["status_ms"]), MODEL, pd.Series(True, found.index))
    cards = card_counts(every.assign(base_cards=every["base"].map(every["cards_ms"])), "cards_ms", "base_cards")
    moments = [predict_peaks(_workload(row), row["mode"]).values() for _, row in found.iterrows()]
    checkpoints = pd.Series(written(every, "every {checkpoint_every} blocks{kept}"), every.index)
    checkpoints = checkpoints.str.replace("every 1 blocks", "each block")
    return every.assign(
        status=found["status"],
        checkpoints=checkpoints.where(every["checkpoint_every"] > 0, "none"),
        gpus=pd.Series(cards, every.index).map(str).where(every["median_ms"].notna()),
        by_formula_bytes=[max(moment.total_bytes for moment in each) for each in moments],
    )


def _workload(row: pd.Series) -> Workload:
    """Return what the formulas take of a cell."""
    cell = Cell(**{name: row[name] if isinstance(row[name], str) else int(row[name]) for name in AXES})
    return cell.workload(int(row["setting_vocab_size"]), int(row["setting_batch_size"]), row["device_type"])


def _of(rows: pd.DataFrame, kind: str, cells: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of one kind of the recordings of cells."""
    return with_figures(rows[rows["kind"] == kind]).merge(cells[AXES], on=AXES)


def _lead(found: pd.DataFrame) -> pd.Series:
    """Choose the recording to speak of: rather a training step, rather a plain one, at the longest context, in bf16."""
    found = found.assign(plain=found.index.isin(alike(found, PLAIN).index), place=found.index)
    lead = in_order(found, ["mode", "plain", "context_length", "precision"], ORDERS).iloc[-1]
    return found.loc[lead["place"]]


def _answer(lead: pd.Series) -> str:
    made_of = lead[list(KINDS)].astype(float).rename(KINDS).nlargest(3)
    return say(
        "A {lead[what]} of {lead[size]} ({lead[precision]}, batch {lead[setting_batch_size]:count}, context "
        "{lead[context_length]:count}, {lead[with_attention]} attention) peaks at {lead[peak_bytes]:data_size}, in "
        "{lead[phase]}: {size[0]:data_size} {kind[0]}, {size[1]:data_size} {kind[1]}, {size[2]:data_size} {kind[2]}.",
        lead=lead,
        size=[*made_of],
        kind=[*made_of.index],
    )


def _composition(plain: pd.DataFrame) -> Chart:
    """Stack what each peak is made of, a bar a context and way to run."""
    drawn = with_figures(in_order(plain, ["mode", "context_length"], ORDERS)).rename(columns=KINDS)
    drawn = drawn.assign(label=written(drawn, "{what}, {context_length}"))
    long = drawn.melt(["label", "phase"], list(KINDS.values()), "kind_of_memory", "part_bytes")
    title = f"Memory at the peak by way to run and context ({_what(plain)}, plain attention)"
    axes, hover = (Axis("gb", "GB"), Axis("label")), {"GB": "gb", "the peak is in": "phase"}
    return Chart("composition", title, _in_gb(long, "part_bytes"), "stack", *axes, "kind_of_memory", hover=hover)


def _in_gb(rows: pd.DataFrame, column: str) -> pd.DataFrame:
    return rows.assign(gb=rows[column].astype(float) / 1e9)


def _what(cells: pd.DataFrame) -> str:
    return ", ".join([*cells["size"].unique(), *cells["precision"].unique()])


def _timelines(rows: pd.DataFrame, plain: pd.DataFrame, steps: pd.DataFrame, lead: pd.DataFrame) -> Chart:
    """Draw a panel a recording: forward passes, a step, steps at the shortest and the longest context that has one."""
    ends = with_figures(steps[steps["checkpoint_every"] == 0]).drop_duplicates("context_length")
    told = pd.concat([lead, ends.head(1), ends.tail(1)])[["precision", "context_length"]].drop_duplicates()
    forward = with_figures(plain[plain["mode"] != STEP]).merge(told)
    cells = pd.concat([forward, lead, ends.head(1), ends.tail(1)]).drop_duplicates(AXES)
    drawn = known(_of(rows, "timeline", cells), "events", "active_bytes").explode(["events", "active_bytes"])
    drawn = _in_gb(drawn.astype({"events": float}), "active_bytes")
    total = drawn.groupby(["setting", "events"], sort=False, as_index=False)["gb"].sum().assign(category="total")
    drawn = pd.concat([total, drawn[[*total]]])
    title = "Active memory in forward passes alone and in steps, a panel each, by context up to the longest that fits"
    axes = Axis("events", "allocations and releases so far"), Axis("gb", "active memory (GB)")
    drawn = drawn.assign(kind_of_memory=drawn["category"].str.replace("_", " "))
    return Chart("timelines", title, drawn, "line", *axes, "kind_of_memory", panel="setting")


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
    return Table.of(name, f"Training steps ({_what(shown)}). {BESIDE_FIRST}", shown, f"{names} verdict gpus")


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
    return Table.of("peaks", caption, cells, names, across="context")


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
    caption = "One tensor of the residual stream: by formula, MiB / as recorded, MiB / how many were:"
    return Table.of("residual", caption, seen, names, across="context", setting_batch_size="batch")


def _largest(rows: pd.DataFrame, plain: pd.DataFrame) -> Table:
    """List the largest allocations of a forward pass in fp32, rather with gradients, at the longest context."""
    cells = with_figures(plain[plain["mode"] != STEP] if (plain["mode"] != STEP).any() else plain)
    first = in_order(cells, ["precision"], ORDERS).groupby("precision", sort=False).tail(1).head(1)
    found = _of(rows, "largest", first).sort_values("rank")
    found = found.assign(made_by=found["location"].str.split(",").str[0])
    same = ["size_bytes", "category", "made_by", "code"]
    found = found.assign(how_many=found.groupby(same)["count"].transform("sum")).drop_duplicates(same)
    names, caption = "size_bytes how_many category made_by:code code:code", ", ".join(first["setting"])
    found = found.head(MOST_ALLOCATIONS)
    return Table.of("largest", f"The largest allocations ({caption}):", found, names, size_bytes="each", code="line")


def _block(rows: pd.DataFrame, shown: pd.DataFrame) -> Table:
    """Write what one block saves at the longest context: the largest tensors by name, their sum, and its gradients."""
    blocks = with_figures(rows[(rows["kind"] == "block") & rows["size"].isin(shown["size"])])
    blocks = blocks.sort_values("context_length", kind="stable").drop_duplicates("attention", keep="last").sort_index()
    saved = _of(rows, "block_saved", blocks).sort_values(["attention", "rank"], kind="stable")
    saved = saved[saved["rank"] <= MOST_ALLOCATIONS]
    saved = saved.assign(
        module=saved["module"].fillna("").replace("", "block"), part=written(saved, "largest, {rank:.0f}")
    )
    saved = saved.assign(cell=written(saved, "{size_bytes:data_size}: {module} {operation}, {dtype} {shape}"))
    sums = [
        blocks.assign(part=what, cell=written(blocks, f"{{{name}_bytes:data_size}}"))
        for name, what in BLOCK_SUMS.items()
    ]
    both = in_order(pd.concat([saved, *sums]), ["attention"], ORDERS)
    both = both.assign(setting=written(both, "{with_attention}, {precision}, {context_length:,}"))
    return Table.of("block", "", both, "part setting cell", across="", part="one block", setting="", cell="")


def _depth(deep: pd.DataFrame) -> Table:
    """Write checkpoints by the number of blocks: what is alive, what runs again, memory and time."""
    deep = in_order(deep[deep["checkpointing"] != "selective"], ["num_layers", "checkpoint_every"], {})
    of = [*deep[["num_layers", "checkpoint_every", "checkpointing"]].itertuples(index=False, name=None)]
    deep = deep.assign(
        blocks=deep["num_layers"],
        d_model=[SIZES[size].d_model for size in deep["size"]],
        inputs=[1 + max(rerun.inputs for rerun in reruns(*each)) if each[1] else None for each in of],
        again=[blocks_run_again(*each) for each in of],
    )
    names = "checkpoints blocks inputs again most_activations_bytes gain"
    return Table.of("depth", "".join(written(deep.head(1), DEPTH)), deep, names, across="blocks")
