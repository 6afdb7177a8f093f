"""Build the attention section: time and memory of plain attention, where memory runs out, what compiling changes."""

from collections.abc import Mapping

import pandas as pd

from pipeline.formulas import attention
from pipeline.formulas.attention import Shape
from pipeline.formulas.units import FP32_BYTES
from pipeline.report.chart import Axis, Chart, Limit
from pipeline.report.frame import having, in_order, with_values
from pipeline.report.section import Section
from pipeline.report.table import Table
from pipeline.report.versus import side_by_side
from pipeline.report.words import Words
from pipeline.stages.attention.cell import PHASES

WORDS = Words(__file__)
ON = ["head_dim", "seq_len", "phase"]
USUAL_HEAD_DIM = 64
COUNTED = ("before_backward_bytes", "peak_bytes")


def build(rows: pd.DataFrame, other_stages: Mapping[str, pd.DataFrame]) -> Section:
    """Return the section of the attention stage."""
    rows = in_order(rows[rows["clock"] == "host"], ON, {"phase": PHASES})
    # Library workspaces belong neither to attention nor to the formula.
    rows = rows.assign(**{name: rows[name] - rows["workspace_bytes"].fillna(0) for name in COUNTED})
    both = side_by_side(rows, ON, "mode", "compiled", "eager")
    measured = set(with_values(rows)["head_dim"])
    usual = USUAL_HEAD_DIM if USUAL_HEAD_DIM in measured else int(max(measured))
    here, limits = both[both["head_dim"] == usual], _limits(rows)
    return Section(
        _answer(here, limits[limits["head_dim"] == usual]),
        [_memory(rows[rows["head_dim"] == usual]), _times(here)],
        for_course=[_held(both), _grid(both), _tensors(limits)],
    )


def _answer(both: pd.DataFrame, limits: pd.DataFrame) -> str:
    judged = having(both, "ratio")
    whole = judged[judged.groupby("seq_len")["phase"].transform("nunique") == len(PHASES)]
    if whole.empty or limits.empty:
        return WORDS.say("no_whole_length")
    forward, backward = (row for _, row in whole[whole["seq_len"] == whole["seq_len"].max()].iterrows())
    return WORDS.say("answer", forward=forward, backward=backward, limit=limits.iloc[0])


def _memory(rows: pd.DataFrame) -> Chart:
    """Plot peak memory by length for both modes and by formula; on a CPU, where no peak is counted, saved bytes."""
    column = "peak_bytes" if rows["peak_bytes"].notna().any() else "saved_bytes"
    forward = rows[rows["phase"] == "forward"].sort_values("mode", ascending=False, kind="stable")
    counted = forward.assign(who=forward["mode"], gb=forward[column] / 1e9)
    formula = forward.drop_duplicates("seq_len").assign(who="predicted", gb=forward[f"model_{column}"] / 1e9)
    drawn = pd.concat([counted, formula.assign(status="ok")])
    axes = Axis("seq_len", log=True), Axis("gb", log=True)
    limits = [Limit(full / 1e9, "memory") for full in rows["memory_bytes"].dropna().nlargest(1)]
    return WORDS.chart("memory", drawn, "line", *axes, "who", limits=limits, values={"what": WORDS.say(column)})


def _times(both: pd.DataFrame) -> Table:
    """Tabulate memory and time by length, eager and compiled; times have a column per phase."""
    forward = both[both["phase"] == "forward"]
    shown = both.merge(forward, "left", ON[:2], suffixes=("", "_forward"))
    of_length = "saved_bytes_peer_forward before_backward_bytes_peer_forward peak_bytes_peer_forward peak_bytes_forward"
    names = f"head_dim seq_len {of_length} phase median_ms_peer median_ms gain verdict"
    return WORDS.table("times", shown, names, across="phase", passes=forward["n_peer"].max())


def _held(both: pd.DataFrame) -> Table:
    """Tabulate memory by length, for the smallest and the largest head_dim."""
    ends = [both["head_dim"].min(), both["head_dim"].max()]
    forward = both[(both["phase"] == "forward") & both["head_dim"].isin(ends)]
    names = "head_dim seq_len saved_bytes_peer before_backward_bytes_peer peak_bytes_peer peak_bytes"
    return WORDS.table("held", forward, names, across="seq_len")


def _grid(both: pd.DataFrame) -> Table:
    """Tabulate the times of both modes, with a row per phase and head_dim and a column per length."""
    both = in_order(both, ["phase", "head_dim", "seq_len"], {"phase": PHASES})
    return WORDS.table("grid", both, "phase head_dim seq_len median_ms_peer median_ms gain verdict", across="seq_len")


def _limits(rows: pd.DataFrame) -> pd.DataFrame:
    """Return by head_dim the longest sequence that fits by formula, the longest that ran, the shortest that ran out."""
    eager = rows[rows["mode"] == "eager"]
    done = with_values(eager[eager["phase"] == "backward"]).groupby("head_dim")["seq_len"].max()
    out = eager[eager["status"] == "oom"].groupby("head_dim")["seq_len"].min()
    found = rows.loc[having(rows, "device_type", "memory_bytes").groupby("head_dim")["memory_bytes"].idxmax()]
    fits = [
        attention.longest_that_fits(_shape(row, 1), FP32_BYTES, row["device_type"], int(row["memory_bytes"]))
        for _, row in found.iterrows()
    ]
    return found.assign(fits=fits, done=found["head_dim"].map(done), out=found["head_dim"].map(out))


def _shape(row: pd.Series, seq_len: int) -> Shape:
    return Shape(int(row["setting_batch_size"]), 1, seq_len, int(row["head_dim"]), bool(row["setting_is_causal"]))


def _tensors(limits: pd.DataFrame) -> Table:
    """Break down by tensor the peak of the shortest sequence that ran out of memory, else of the longest that ran."""
    ran = having(limits, "done").sort_values("done", ascending=False, kind="stable")
    limit = pd.concat([having(limits, "out").sort_values("out", kind="stable"), ran]).head(1)
    limit = limit.assign(seq_len=limit["out"].fillna(limit["done"]))
    parts = [
        part for _, row in limit.iterrows() for part in _parts(_shape(row, int(row["seq_len"])), row["device_type"])
    ]
    found = limit.merge(pd.DataFrame(parts, columns=["tensor", "elements", "size_bytes"]), "cross")
    return WORDS.table("tensors", found, "tensor elements size_bytes")


def _parts(shape: Shape, device_type: str) -> list[tuple[str, str, int]]:
    """Return each tensor's name, symbolic size and bytes, then the total and what FlashAttention keeps instead."""
    vector, matrix = shape.vectors * FP32_BYTES, shape.scores * FP32_BYTES
    temporaries = attention.SOFTMAX_BACKWARD_TEMPORARIES[device_type]
    parts = [
        ("q, k, v and the gradient of the output", "4·B·S·D", 4 * vector),
        ("the output, the scaled q, the gradient of v", "3·B·S·D", 3 * vector),
        ("softmax's output, saved for backward", "B·S²", matrix),
        ("its gradient and that of the scores", "2·B·S²", 2 * matrix),
        ("softmax's product of gradient and output", f"{temporaries}·B·S²", temporaries * matrix),
        ("all of them", "", attention.peak_bytes(shape, FP32_BYTES, device_type)),
        ("what FlashAttention keeps instead of the scores: the LSE", "B·S", attention.flash_saved_bytes(shape)),
    ]
    return [part for part in parts if part[-1]]  # a CPU has no temporaries
