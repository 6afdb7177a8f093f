"""The memory section: what a peak consists of, how it builds up, and how attention and checkpoints change it."""

from collections.abc import Mapping

import pandas as pd

from pipeline.cells.rows import WITH_VALUES
from pipeline.cells.timed_rows import TRAIN_STEP
from pipeline.formulas.activations import residual_stream_bytes
from pipeline.formulas.checkpointing import blocks_run_again, reruns
from pipeline.formulas.peak_memory import CATEGORIES
from pipeline.report.chart import Chart
from pipeline.report.formats import data_size, written
from pipeline.report.frame import having, in_order, matching, with_values
from pipeline.report.section import Change, Section
from pipeline.report.table import Table
from pipeline.report.words import Words
from pipeline.stages.memory.report_peaks import AXES, ORDERS, highest, in_words, workload

WORDS = Words(__file__)
KINDS = {f"{name}_bytes": name.replace("_", " ") for name in CATEGORIES}
PLAIN = {"attention": "eager", "checkpoint_every": 0, "num_layers": 0}
MOST_ALLOCATIONS = 4
LEAST_SHARE = 0.1  # of a peak: the answer leaves out smaller kinds
BLOCK_SUMS = {"saved": "all that it saves", "gradients": "its gradients", "input_gradient": "gradient of its input"}


def build(rows: pd.DataFrame, _: Mapping[str, pd.DataFrame]) -> Section:
    """Return the section of the memory stage."""
    rows = in_words(rows)
    peaks = highest(rows)
    measured = with_values(peaks)
    if measured.empty:
        return Section(WORDS.say("no_peaks"))
    # Prefer models with their own number of blocks (num_layers 0).
    measured = measured[measured["num_layers"] == measured["num_layers"].min()]
    leading = _lead(measured[measured["size"] == measured["size"].mode()[0]])
    lead = leading.iloc[0]
    shown = matching(peaks, lead[["size", "num_layers"]].to_dict())
    plain, steps = matching(shown, PLAIN), shown[shown["mode"] == TRAIN_STEP]
    here, plain_here = (each[each["precision"] == lead["precision"]] for each in (steps, plain))
    return Section(
        _answer(lead),
        [_composition(plain_here), _variants(steps, lead["precision"])],
        _changes(with_values(here), peaks),
        for_course=[
            _timelines(rows, plain, here, leading),
            _all_peaks(shown[shown["checkpoint_every"] == 0]),
            _residual_stream(rows, plain),
            _largest(rows, plain),
            _block(rows, shown),
            _checkpoints_by_depth(peaks[peaks["num_layers"] > 0]),
        ],
    )


def _rows_of_kind(rows: pd.DataFrame, kind: str, cells: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of one kind from the recordings of these cells."""
    return with_values(rows[rows["kind"] == kind]).merge(cells[AXES], on=AXES)


def _lead(found: pd.DataFrame) -> pd.DataFrame:
    """Choose the recording that the section leads with.

    Prefers, in this order: a training step, a PLAIN one, one without checkpoints, the longest context, bf16.
    """
    found = found.assign(plain=found.index.isin(matching(found, PLAIN).index), is_whole=found["checkpoint_every"] == 0)
    return in_order(found, ["mode", "plain", "is_whole", "context_length", "precision"], ORDERS).tail(1)


def _answer(lead: pd.Series) -> str:
    parts = lead[list(KINDS)].astype(float).rename(KINDS).sort_values(ascending=False, kind="stable")
    most = parts[parts >= LEAST_SHARE * parts.sum()]
    kinds = ", ".join(f"{data_size(size)} {kind}" for kind, size in most.items())
    return WORDS.say("answer", lead=lead, most=kinds)


def _composition(plain: pd.DataFrame) -> Chart:
    drawn = with_values(in_order(plain, ["mode", "context_length"], ORDERS)).rename(columns=KINDS)
    drawn = drawn.assign(label=written(drawn, "{what}, {context_length}"))
    drawn = drawn.melt(["label", "phase", "size", "precision"], [*KINDS.values()], "kind_of_memory", "part_bytes")
    drawn = drawn.assign(gb=drawn["part_bytes"] / 1e9)
    return WORDS.chart("composition", drawn, "stack", "gb", "label", "kind_of_memory", hover="phase")


def _timelines(rows: pd.DataFrame, plain: pd.DataFrame, steps: pd.DataFrame, lead: pd.DataFrame) -> Chart:
    """Draw one panel per recording: the lead, steps at the shortest and longest context, forward passes at these."""
    ends = with_values(steps[steps["checkpoint_every"] == 0]).drop_duplicates("context_length")
    steps_shown = pd.concat([lead, ends.head(1), ends.tail(1)])
    forward = plain[plain["mode"] != TRAIN_STEP].merge(steps_shown[["precision", "context_length"]].drop_duplicates())
    cells = pd.concat([forward, steps_shown]).drop_duplicates(AXES)
    drawn = having(_rows_of_kind(rows, "timeline", cells), "events", "active_bytes").explode(["events", "active_bytes"])
    drawn = drawn.assign(gb=drawn["active_bytes"].astype(float) / 1e9).astype({"events": float})
    total = drawn.groupby(["setting", "events"], sort=False, as_index=False)["gb"].sum().assign(category="total")
    drawn = pd.concat([total, drawn[[*total]]])
    drawn = drawn.assign(kind_of_memory=drawn["category"].str.replace("_", " "))
    return WORDS.chart("timelines", drawn, "line", "events", "gb", "kind_of_memory", panel="setting")


def _variants(steps: pd.DataFrame, precision: str) -> Table:
    """Tabulate steps by attention and checkpoints, at one context and precision with several such steps.

    Prefers, in this order: one where a step fits, the given precision, the longest context.
    """
    steps = steps[steps["checkpointing"] == "segments"]
    several = steps[steps.groupby(["precision", "context_length"])["mode"].transform("size") > 1]
    own, fits = several["precision"] == precision, several["status"].isin(WITH_VALUES)
    last = several.assign(own=own, fits=fits).sort_values(["fits", "own", "context_length"]).tail(1)
    shown = several.merge(last[["precision", "context_length"]])
    names = "context_length with_attention checkpoints peak_bytes by_formula_bytes before_update_bytes median_ms gain"
    return WORDS.table("variants", shown, f"{names} verdict gpus", only_filled=True)


def _changes(steps: pd.DataFrame, peaks: pd.DataFrame) -> list[Change]:
    """Return the gain of flash attention where plain needs checkpoints; the levers stage covers its other gains."""
    flash = having(steps[(steps["attention"] == "flash") & (steps["checkpoint_every"] == 0)], "ratio")
    found = []
    for old, new in ((peaks.loc[row["base"]], row) for _, row in flash.iterrows()):
        if old["attention"] == "eager" and old["checkpoint_every"]:
            cards = " (the two times from different GPUs)" if old["cards_ms"] != new["cards_ms"] else ""
            model = f"{new['size']}, {new['precision']}"
            where = f"{model}, batch {new['setting_batch_size']:.0f}, context {new['context_length']}{cards}"
            found.append(Change.between("our flash attention, where plain needs checkpoints", where, old, new))
    return found


def _all_peaks(cells: pd.DataFrame) -> Table:
    cells = in_order(cells, ["mode", "attention", "precision", "context_length"], ORDERS)
    names = "what with_attention precision context_length peak_bytes by_formula_bytes"
    return WORDS.table("peaks", cells, names, across="context_length")


def _residual_stream(rows: pd.DataFrame, plain: pd.DataFrame) -> Table:
    cells = with_values(plain[plain["mode"] != "inference"]).drop_duplicates(["precision", "context_length"])
    seen = _rows_of_kind(rows, "residual", cells)
    by_formula_mib = [residual_stream_bytes(workload(row)) / 2**20 for _, row in seen.iterrows()]
    seen = seen.assign(by_formula_mib=by_formula_mib, recorded_mib=seen["size_bytes"] / 2**20)
    names = "size precision setting_batch_size d_model context_length by_formula_mib recorded_mib count"
    return WORDS.table("residual", seen, names, across="context_length")


def _largest(rows: pd.DataFrame, plain: pd.DataFrame) -> Table:
    """List the largest allocations of a forward pass in fp32 at the longest context, with gradients if measured."""
    cells = with_values(plain[plain["mode"] != TRAIN_STEP] if (plain["mode"] != TRAIN_STEP).any() else plain)
    found = _rows_of_kind(rows, "largest", cells.drop_duplicates("precision", keep="last").head(1)).sort_values("rank")
    found = found.assign(made_by=found["location"].str.split(",").str[0])
    same = ["size_bytes", "category", "made_by", "code"]
    found = found.assign(how_many=found.groupby(same)["count"].transform("sum")).drop_duplicates(same)
    return WORDS.table("largest", found.head(MOST_ALLOCATIONS), "size_bytes how_many category made_by:code code:code")


def _block(rows: pd.DataFrame, shown: pd.DataFrame) -> Table:
    """Tabulate what one block saves at the longest context: the largest tensors, the sum of all, and its gradients."""
    blocks = with_values(rows[(rows["kind"] == "block") & rows["size"].isin(shown["size"])])
    blocks = blocks.sort_values("context_length", kind="stable").drop_duplicates("attention", keep="last")
    saved = _rows_of_kind(rows, "block_saved", blocks).sort_values("rank").groupby("attention").head(MOST_ALLOCATIONS)
    saved = saved.assign(module=saved["module"].fillna("").replace("", "block"))
    tensors = written(saved, "{size_bytes:data_size}: {module} {operation}, {dtype} {shape}")
    saved = saved.assign(part=written(saved, "largest, {rank:.0f}"), cell=tensors)
    sums = {what: blocks[f"{name}_bytes"].map(data_size) for name, what in BLOCK_SUMS.items()}
    parts = [saved, *(blocks.assign(part=what, cell=sizes) for what, sizes in sums.items())]
    both = in_order(pd.concat(parts), ["attention"], ORDERS)
    both = both.assign(setting=written(both, "{with_attention}, {precision}, {context_length:,}"))
    return WORDS.table("block", both, "part setting cell", across="setting")


def _checkpoints_by_depth(deep: pd.DataFrame) -> Table:
    deep = in_order(deep[deep["checkpointing"] != "selective"], ["num_layers", "checkpoint_every"], {})
    settings = [*deep[["num_layers", "checkpoint_every", "checkpointing"]].itertuples(index=False, name=None)]
    deep = deep.assign(
        inputs=[1 + max(rerun.inputs for rerun in reruns(*each)) if each[1] else None for each in settings],
        again=[blocks_run_again(*each) for each in settings],
    )
    names = "checkpoints num_layers inputs again most_activations_bytes gain"
    return WORDS.table("depth", deep, names, across="num_layers")
