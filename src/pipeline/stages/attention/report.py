"""The attention section: what plain attention takes, where memory ends, what compiling changes."""

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from pipeline.formulas import attention
from pipeline.formulas.attention import Shape
from pipeline.formulas.units import FP32_BYTES
from pipeline.report.chart import Axis, Chart, Limit
from pipeline.report.formats import count, data_size, intervals, ms, number, text, times
from pipeline.report.frame import in_order, known, with_figures
from pipeline.report.section import Part, Section, say
from pipeline.report.table import Columns, Table
from pipeline.report.versus import side_by_side
from pipeline.stages.attention.cell import PHASES

ON = ["head_dim", "seq_len", "phase"]
USUAL_HEAD_DIM = 64
MOST_LENGTHS = 4
UNTESTED = "is untested"
COUNTED = ("before_backward_bytes", "peak_bytes")


def build(rows: pd.DataFrame, beside: Mapping[str, pd.DataFrame]) -> Section:
    """Return the section of the attention stage."""
    rows = in_order(rows[rows["clock"] == "host"], ON, {"phase": PHASES})
    # The libraries' workspaces are no part of attention, nor of the formula.
    rows = rows.assign(**{name: rows[name] - rows["workspace_bytes"].fillna(0) for name in COUNTED})
    both = side_by_side(rows, ON, "mode", "compiled", "eager")
    both = both.assign(gain=intervals(both))
    usual = _usual_head_dim(rows)
    here, limits = both[both["head_dim"] == usual], _limits(rows)
    parts: list[Part] = [_memory(rows[rows["head_dim"] == usual], usual), _lengths(here, usual)]
    for_course = [_grid(both), _accounting(rows, limits), _compiled(both)]
    return Section(_answer(here, limits, usual), parts, for_course=for_course)


def _usual_head_dim(rows: pd.DataFrame) -> int:
    measured = set(with_figures(rows)["head_dim"])
    return USUAL_HEAD_DIM if USUAL_HEAD_DIM in measured else int(max(measured))


def _answer(both: pd.DataFrame, limits: pd.DataFrame, usual: int) -> str:
    """Tell where memory ends, and what the longest problem takes that both modes did."""
    judged = both[both["ratio"].notna()]
    whole = judged[judged.groupby("seq_len")["phase"].transform("nunique") == len(PHASES)]
    if whole.empty or limits.empty:
        return say("Of one head of {head_dim} no length ran whole in both modes.", head_dim=usual)
    longest = whole[whole["seq_len"] == whole["seq_len"].max()].set_index("phase")
    forward, backward = (longest.loc[phase] for phase in PHASES)
    limit = limits[limits["head_dim"] == usual].iloc[0]
    return say(
        "Plain attention in fp32, batch {batch}, one head of {head_dim}: by formula forward and backward fit into "
        "{memory} up to length {fits}. At {length} they take {forward} and {backward}; compiled, "
        "{gain_forward} ({verdict_forward}) and {gain_backward} ({verdict_backward}) times as fast.",
        batch=count(forward["setting_batch_size"]),
        head_dim=usual,
        memory=data_size(limit["memory_bytes"]),
        fits=count(limit["fits"]),
        length=count(forward["seq_len"]),
        forward=ms(forward["median_ms_peer"]),
        backward=ms(backward["median_ms_peer"]),
        gain_forward=f"{forward['ratio']:.2f}",
        verdict_forward=forward["verdict"],
        gain_backward=f"{backward['ratio']:.2f}",
        verdict_backward=backward["verdict"],
    )


def _memory(rows: pd.DataFrame, head_dim: int) -> Chart:
    """Draw the peak over length, of both modes and by formula; on a CPU, which counts no peak, what is saved."""
    column, what = ("peak_bytes", "peak") if rows["peak_bytes"].notna().any() else ("saved_bytes", "saved for backward")
    forward = rows[rows["phase"] == "forward"]
    counted = forward.assign(who=forward["mode"], memory_gb=forward[column] / 1e9)
    formula = known(forward, f"model_{column}").drop_duplicates("seq_len")
    formula = formula.assign(who="predicted", memory_gb=formula[f"model_{column}"] / 1e9, status="ok")
    full = rows["memory_bytes"].max()
    return Chart(
        "memory",
        f"Plain attention, {what}: batch {rows['setting_batch_size'].iloc[0]:.0f}, one head of {head_dim}, fp32",
        pd.concat([counted.sort_values("who", ascending=False), formula]),
        "line",
        Axis("seq_len", "sequence length", log=True),
        Axis("memory_gb", f"GB, {what}", log=True),
        "who",
        limits=[Limit(full / 1e9, "memory")] if pd.notna(full) else [],
    )


def _lengths(both: pd.DataFrame, head_dim: int) -> Table:
    columns: Columns = [
        ("length", "seq_len", count),
        ("phase", "phase", text),
        ("eager, ms", "median_ms_peer", number),
        ("compiled, ms", "median_ms", number),
        ("compiled: times as fast (interval)", "gain", text),
        ("verdict", "verdict", text),
        ("saved for backward", "saved_bytes_peer", data_size),
        ("peak, eager", "peak_bytes_peer", data_size),
        ("peak, compiled", "peak_bytes", data_size),
    ]
    longest = both["seq_len"].drop_duplicates().nlargest(MOST_LENGTHS)
    shown = both[both["seq_len"].isin(longest)]
    return Table("lengths", f"One head of {head_dim}, plain attention in eager mode and compiled:", shown, columns)


def _grid(both: pd.DataFrame) -> Table:
    """Write the assignment's table: each width and length in eager mode, a row for both phases."""
    forward, backward = (both[both["phase"] == phase] for phase in PHASES)
    grid = forward.merge(backward, "left", ["head_dim", "seq_len"], suffixes=("_forward", "_backward"))
    columns: Columns = [
        ("head_dim", "head_dim", count),
        ("length", "seq_len", count),
        ("forward, ms", "median_ms_peer_forward", number),
        ("backward, ms", "median_ms_peer_backward", number),
        ("in use before backward", "before_backward_bytes_peer_forward", data_size),
        ("peak", "peak_bytes_peer_forward", data_size),
    ]
    passes = known(both, "n_peer")["n_peer"].max()
    how_many = "" if pd.isna(passes) else f" of {passes:.0f} passes"
    caption = f"Eager attention: forward / backward (medians{how_many}, ms) / memory in use before backward / peak:"
    return Table("grid", caption, grid, columns, all_rows=True, across="length")


def _compiled(both: pd.DataFrame) -> Table:
    columns: Columns = [
        ("head_dim", "head_dim", count),
        ("phase", "phase", text),
        ("length", "seq_len", count),
        ("compiled, ms", "median_ms", number),
        ("times as fast", "ratio", times),
        ("verdict", "verdict", text),
    ]
    caption = "Compiled attention: ms / times as fast as eager / verdict:"
    return Table("compiled", caption, both, columns, all_rows=True, across="length")


@dataclass(frozen=True)
class _Problem:
    shape: Shape
    device_type: str
    memory_bytes: float


def _problem(rows: pd.DataFrame, seq_len: int) -> _Problem | None:
    """Return the problem of rows of one head_dim at a length; None where none of them names its device."""
    said = known(rows, "device_type", "memory_bytes")
    if said.empty:
        return None
    row = said.iloc[0]
    shape = Shape(int(row["setting_batch_size"]), 1, seq_len, int(row["head_dim"]), bool(row["setting_is_causal"]))
    return _Problem(shape, row["device_type"], float(said["memory_bytes"].max()))


def _limits(rows: pd.DataFrame) -> pd.DataFrame:
    """Put the longest sequence that fits by formula beside what fitted and what ran out."""
    found = []
    for head_dim, group in rows[rows["mode"] == "eager"].groupby("head_dim"):
        problem = _problem(rows[rows["head_dim"] == head_dim], 1)
        if problem is None:
            continue
        done = with_figures(group[group["phase"] == "backward"])["seq_len"].max()
        out = group[group["status"] == "oom"]["seq_len"].min()
        fits = attention.longest_that_fits(problem.shape, FP32_BYTES, problem.device_type, int(problem.memory_bytes))
        tried = pd.notna(done) and pd.notna(out)
        agrees = done <= fits < out
        found.append(
            {
                **{"head_dim": head_dim, "memory_bytes": problem.memory_bytes, "fits": fits, "done": done, "out": out},
                "verdict": ("agrees" if agrees else "is wrong") if tried else UNTESTED,
            }
        )
    return pd.DataFrame(found)


def _accounting(rows: pd.DataFrame, limits: pd.DataFrame) -> Table:
    """Account for the peak of the smallest problem that does not fit, tensor by tensor."""
    eager = rows[rows["mode"] == "eager"] if (rows["mode"] == "eager").any() else rows
    out = eager[eager["status"] == "oom"]
    worst = (out if len(out) else eager).sort_values(["seq_len", "head_dim"], ascending=[bool(len(out)), True])
    row = worst.iloc[0]
    problem = _problem(rows[rows["head_dim"] == row["head_dim"]], int(row["seq_len"]))
    parts = _tensors(problem.shape, problem.device_type) if problem else []
    at = f"batch {row['setting_batch_size']}, head_dim {row['head_dim']}, length {row['seq_len']}"
    columns = [("tensor", "tensor", text), ("elements", "elements", text), ("bytes", "bytes", data_size)]
    said = [
        f"; {data_size(limit['memory_bytes'])} hold up to length {limit['fits']:,.0f} by it (longest that ran: "
        f"{limit['done']:,.0f}, shortest out of memory: {limit['out']:,.0f}, so the formula {limit['verdict']})"
        for _, limit in limits.iterrows()
        if limit["head_dim"] == row["head_dim"] and limit["verdict"] != UNTESTED
    ]
    return Table(
        "accounting",
        f"The peak at {at}, by formula{''.join(said)}:",
        pd.DataFrame(parts, columns=["tensor", "elements", "bytes"]),
        columns,
    )


def _tensors(shape: Shape, device_type: str) -> list[tuple[str, str, int]]:
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
