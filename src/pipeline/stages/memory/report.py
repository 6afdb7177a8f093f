"""The memory section: what a peak is made of, how it comes about, and what attention and checkpoints make of it."""

from collections.abc import Mapping

import pandas as pd

from pipeline.formulas.activations import residual_stream_bytes
from pipeline.formulas.checkpointing import blocks_run_again, reruns
from pipeline.formulas.peak_memory import CATEGORIES
from pipeline.formulas.sizes import SIZES
from pipeline.report.chart import Axis, Chart
from pipeline.report.formats import data_size, written
from pipeline.report.frame import alike, in_order, known, with_figures
from pipeline.report.section import Change, Section, say
from pipeline.report.table import Table
from pipeline.stages.memory.report_peaks import AXES, ORDERS, STEP, highest, in_words, workload

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
    rows = in_words(rows)
    every = highest(rows)
    found = with_figures(every)
    if found.empty:
        return Section("Times were measured, but no peak.")
    # Steps of a chosen number of blocks speak for the rest only where nothing else does.
    found = found[found["num_layers"] == found["num_layers"].min()]
    lead = _lead(found[found["size"] == found["size"].mode()[0]])
    shown = alike(every, lead[["size", "num_layers"]].to_dict())
    plain, steps = alike(shown, PLAIN), shown[shown["mode"] == STEP]
    here, plain_here = (each[each["precision"] == lead["precision"]] for each in (steps, plain))
    return Section(
        _answer(lead),
        [_composition(plain_here, lead), _variants(steps, lead["precision"])],
        _changes(with_figures(here), every),
        for_course=[
            _timelines(rows, plain, here, found.loc[[lead.name]]),
            _all_peaks(shown[shown["checkpoint_every"] == 0]),
            _residual_stream(rows, plain),
            _largest(rows, plain),
            _block(rows, shown),
            _depth(every[every["num_layers"] > 0]),
        ],
    )


def _of(rows: pd.DataFrame, kind: str, cells: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of one kind of the recordings of cells."""
    return with_figures(rows[rows["kind"] == kind]).merge(cells[AXES], on=AXES)


def _lead(found: pd.DataFrame) -> pd.Series:
    """Choose the recording to speak of: rather a training step, rather a plain one, at the longest context, in bf16."""
    found = found.assign(plain=found.index.isin(alike(found, PLAIN).index), place=found.index)
    lead = in_order(found, ["mode", "plain", "context_length", "precision"], ORDERS).iloc[-1]
    return found.loc[lead["place"]]


def _answer(lead: pd.Series) -> str:
    most = lead[list(KINDS)].astype(float).rename(KINDS).nlargest(3)
    return say(
        "A {lead[what]} of {lead[size]} ({lead[precision]}, batch {lead[setting_batch_size]:count}, context "
        "{lead[context_length]:count}, {lead[with_attention]} attention) peaks at {lead[peak_bytes]:data_size}, in "
        "{lead[phase]}: {most}.",
        lead=lead,
        most=", ".join(f"{data_size(size)} {kind}" for kind, size in most.items()),
    )


def _composition(plain: pd.DataFrame, lead: pd.Series) -> Chart:
    """Stack what each peak is made of, a bar a context and way to run."""
    drawn = with_figures(in_order(plain, ["mode", "context_length"], ORDERS)).rename(columns=KINDS)
    drawn = drawn.assign(label=written(drawn, "{what}, {context_length}"))
    long = drawn.melt(["label", "phase"], list(KINDS.values()), "kind_of_memory", "part_bytes")
    title = "Memory at the peak by way to run and context ({size}, {precision}, plain attention)"
    axes, hover = (Axis("gb", "GB"), Axis("label")), {"GB": "gb", "the peak is in": "phase"}
    long = long.assign(gb=long["part_bytes"] / 1e9)
    return Chart("composition", title.format(**lead), long, "stack", *axes, "kind_of_memory", hover=hover)


def _timelines(rows: pd.DataFrame, plain: pd.DataFrame, steps: pd.DataFrame, lead: pd.DataFrame) -> Chart:
    """Draw a panel a recording: forward passes, a step, steps at the shortest and the longest context that has one."""
    ends = with_figures(steps[steps["checkpoint_every"] == 0]).drop_duplicates("context_length")
    told = pd.concat([lead, ends.head(1), ends.tail(1)])[["precision", "context_length"]].drop_duplicates()
    forward = with_figures(plain[plain["mode"] != STEP]).merge(told)
    cells = pd.concat([forward, lead, ends.head(1), ends.tail(1)]).drop_duplicates(AXES)
    drawn = known(_of(rows, "timeline", cells), "events", "active_bytes").explode(["events", "active_bytes"])
    drawn = drawn.assign(gb=drawn["active_bytes"].astype(float) / 1e9).astype({"events": float})
    total = drawn.groupby(["setting", "events"], sort=False, as_index=False)["gb"].sum().assign(category="total")
    drawn = pd.concat([total, drawn[[*total]]])
    title = "Active memory in forward passes alone and in steps, a panel each, by context up to the longest that fits"
    axes = Axis("events", "allocations and releases so far"), Axis("gb", "active memory (GB)")
    drawn = drawn.assign(kind_of_memory=drawn["category"].str.replace("_", " "))
    return Chart("timelines", title, drawn, "line", *axes, "kind_of_memory", panel="setting")


def _variants(steps: pd.DataFrame, precision: str) -> Table:
    """Write steps by attention and checkpoints at the longest context with several: in this precision, or another."""
    steps = steps[steps["checkpointing"] == "segments"]
    several = steps[steps.groupby(["precision", "context_length"])["mode"].transform("size") > 1]
    own = several["precision"] == precision
    several = several[own if own.any() else ~own]
    shown = several[several["context_length"] == several["context_length"].max()]
    names = "context_length with_attention checkpoints peak_bytes by_formula_bytes before_update_bytes median_ms gain"
    what = ", ".join([*shown["size"].unique(), *shown["precision"].unique()])
    return Table.of("variants", f"Training steps ({what}). {BESIDE_FIRST}", shown, f"{names} verdict gpus")


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
    works = [workload(row) for _, row in seen.iterrows()]
    seen = seen.assign(
        d_model=[work.size.d_model for work in works],
        by_formula_mib=[residual_stream_bytes(work) / 2**20 for work in works],
        recorded_mib=seen["size_bytes"] / 2**20,
    )
    names = "size precision setting_batch_size d_model context_length by_formula_mib recorded_mib count"
    caption = "One tensor of the residual stream: by formula, MiB / as recorded, MiB / how many were:"
    return Table.of("residual", caption, seen, names, across="context", heads={"setting_batch_size": "batch"})


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
    return Table.of(
        "largest", f"The largest allocations ({caption}):", found, names, heads={"size_bytes": "each", "code": "line"}
    )


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
    return Table.of(
        "block", "", both, "part setting cell", across="", heads={"part": "one block", "setting": "", "cell": ""}
    )


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
    caption = "".join(filter(None, written(deep.head(1), DEPTH)))
    return Table.of("depth", caption, deep, names, across="blocks")
