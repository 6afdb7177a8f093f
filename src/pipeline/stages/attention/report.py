"""The attention section: what plain attention takes, where memory ends, what compiling changes."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from pipeline.formulas import attention
from pipeline.formulas.attention import Shape
from pipeline.formulas.units import FP32_BYTES
from pipeline.report.chart import Axis, Chart, Limit
from pipeline.report.formats import written
from pipeline.report.frame import in_order, known, with_figures
from pipeline.report.section import Section, say
from pipeline.report.table import Table, named
from pipeline.report.versus import side_by_side
from pipeline.stages.attention.cell import PHASES

ON = ["head_dim", "seq_len", "phase"]
USUAL_HEAD_DIM = 64
OF_LENGTH = {
    "saved_bytes_peer_forward": "saved for backward",
    "before_backward_bytes_peer_forward": "in use before backward",
    "peak_bytes_peer_forward": "peak, eager",
    "peak_bytes_forward": "peak, compiled",
    "n_peer_forward": "passes",
}
COUNTED = ("before_backward_bytes", "peak_bytes")


def build(rows: pd.DataFrame, beside: Mapping[str, pd.DataFrame]) -> Section:
    """Return the section of the attention stage."""
    rows = in_order(rows[rows["clock"] == "host"], ON, {"phase": PHASES})
    # The libraries' workspaces are no part of attention, nor of the formula.
    rows = rows.assign(**{name: rows[name] - rows["workspace_bytes"].fillna(0) for name in COUNTED})
    both = side_by_side(rows, ON, "mode", "compiled", "eager")
    measured = set(with_figures(rows)["head_dim"])
    usual = USUAL_HEAD_DIM if USUAL_HEAD_DIM in measured else int(max(measured))
    here, limits = both[both["head_dim"] == usual], _limits(rows)
    return Section(
        _answer(here, limits[limits["head_dim"] == usual]),
        [_memory(rows[rows["head_dim"] == usual]), _times("times", here)],
        for_course=[_times("grid", both), _tensors(limits)],
    )


def _answer(both: pd.DataFrame, limits: pd.DataFrame) -> str:
    judged = known(both, "ratio")
    whole = judged[judged.groupby("seq_len")["phase"].transform("nunique") == len(PHASES)]
    if whole.empty or limits.empty:
        return say("At this width no length ran whole in both modes.")
    forward, backward = (row for _, row in whole[whole["seq_len"] == whole["seq_len"].max()].iterrows())
    return say(
        "Plain attention in fp32, batch {forward[setting_batch_size]}, one head of {forward[head_dim]}: by formula "
        "forward and backward fit into {limit[memory_bytes]:data_size} up to length {limit[fits]:count}. At "
        "{forward[seq_len]:count} they take {forward[median_ms_peer]:ms} and {backward[median_ms_peer]:ms}; compiled, "
        "{forward[ratio]:times} ({forward[verdict]}) and {backward[ratio]:times} ({backward[verdict]}) as fast.",
        forward=forward,
        backward=backward,
        limit=limits.iloc[0],
    )


def _memory(rows: pd.DataFrame) -> Chart:
    """Draw the peak over length, of both modes and by formula; on a CPU, which counts no peak, what is saved."""
    column, what = ("peak_bytes", "peak") if rows["peak_bytes"].notna().any() else ("saved_bytes", "saved for backward")
    forward = rows[rows["phase"] == "forward"].sort_values("mode", ascending=False, kind="stable")
    counted = forward.assign(who=forward["mode"], gb=forward[column] / 1e9)
    formula = forward.drop_duplicates("seq_len").assign(who="predicted", gb=forward[f"model_{column}"] / 1e9)
    return Chart(
        "memory",
        f"Plain attention, {what}: one head of {rows['head_dim'].iloc[0]}, fp32",
        pd.concat([counted, formula.assign(status="ok")]),
        "line",
        Axis("seq_len", "sequence length", log=True),
        Axis("gb", f"GB, {what}", log=True),
        "who",
        limits=[Limit(full / 1e9, "memory") for full in rows["memory_bytes"].dropna().nlargest(1)],
    )


def _times(name: str, both: pd.DataFrame) -> Table:
    """Write what each length takes in memory and, a column a phase, in time, eager and compiled."""
    forward = both[both["phase"] == "forward"]
    caption = (
        "Plain attention in eager mode and compiled, medians: eager, ms / compiled, ms / compiled: times as fast "
        "(interval) / verdict:"
    )
    shown = both.merge(forward, "left", ON[:2], suffixes=("", "_forward"))
    names = f"head_dim seq_len {' '.join(OF_LENGTH)} phase median_ms_peer median_ms gain verdict"
    return Table(name, caption, shown, named(shown, names, **OF_LENGTH, phase=""), all_rows=True, across="")


def _limits(rows: pd.DataFrame) -> pd.DataFrame:
    """Put the longest sequence that fits by formula beside the longest that ran and the shortest that ran out."""
    found: list[dict[str, Any]] = []
    for head_dim, said in known(rows, "device_type", "memory_bytes").groupby("head_dim"):
        row = said.loc[said["memory_bytes"].idxmax()]
        eager = rows[(rows["head_dim"] == head_dim) & (rows["mode"] == "eager")]
        done = with_figures(eager[eager["phase"] == "backward"])["seq_len"].max()
        out = eager.loc[eager["status"] == "oom", "seq_len"].min()
        fits = attention.longest_that_fits(_shape(row, 1), FP32_BYTES, row["device_type"], int(row["memory_bytes"]))
        found.append({**row.to_dict(), "fits": fits, "done": done, "out": out})
    return pd.DataFrame(found, columns=[*rows.columns, "fits", "done", "out"])


def _shape(row: pd.Series, seq_len: int) -> Shape:
    return Shape(int(row["setting_batch_size"]), 1, seq_len, int(row["head_dim"]), bool(row["setting_is_causal"]))


def _tensors(limits: pd.DataFrame) -> Table:
    """Account for the peak of the smallest problem that does not fit, or the largest that does, tensor by tensor."""
    ran = known(limits, "done").sort_values("done", ascending=False, kind="stable")
    told = pd.concat([known(limits, "out").sort_values("out", kind="stable"), ran]).head(1)
    told = told.assign(seq_len=told["out"].fillna(told["done"]))
    parts = [
        part for _, row in told.iterrows() for part in _parts(_shape(row, int(row["seq_len"])), row["device_type"])
    ]
    at = written(told, "batch {setting_batch_size:count}, head_dim {head_dim}, length {seq_len:count}")
    found = pd.DataFrame(parts, columns=["tensor", "elements", "size_bytes"])
    columns = named(found, "tensor elements size_bytes", size_bytes="bytes")
    return Table("tensors", f"The peak at {', '.join(map(str, at))}, by formula:", found, columns)


def _parts(shape: Shape, device_type: str) -> list[tuple[str, str, int]]:
    """Return tensor, its elements in symbols, and bytes; last the whole, and what FlashAttention keeps instead."""
    vector, matrix = shape.vectors * FP32_BYTES, shape.scores * FP32_BYTES
    temporaries = attention.SOFTMAX_BACKWARD_TEMPORARIES[device_type]
    return [
        ("q, k, v and the gradient of the output", "4·B·S·D", 4 * vector),
        ("the output, the scaled q, the gradient of v", "3·B·S·D", 3 * vector),
        ("softmax's output, saved for backward", "B·S²", matrix),
        ("its gradient and that of the scores", "2·B·S²", 2 * matrix),
        ("softmax's product of gradient and output", f"{temporaries}·B·S²", temporaries * matrix),
        ("all of them", "", attention.peak_bytes(shape, FP32_BYTES, device_type)),
        ("what FlashAttention keeps of the scores: the LSE", "B·S", attention.flash_saved_bytes(shape)),
    ]
