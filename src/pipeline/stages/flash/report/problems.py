"""The assignment's problems on FlashAttention-2, each answered in two sentences."""

import pandas as pd

from pipeline.report.markup import Markdown
from pipeline.report.page_parts import Problem, say
from pipeline.report.section import data_size, ms, number, ratio
from pipeline.report.table_rows import known, ok
from pipeline.stages.flash.cell import PHASES
from pipeline.stages.flash.report.facts import (
    BOTH_PHASES,
    WORDS,
    beside_peers,
    largest_errors,
    leaderboard,
    one_head,
    ours,
    shape_words,
    usual_head_dim,
)


def problems(rows: pd.DataFrame) -> list[Problem]:
    """Answer each problem for which there are rows."""
    longest = _longest(one_head(rows))
    answers = {
        "flash_forward": [_errors(rows, "output", ("output",), "forward")],
        "flash_backward": [_errors(rows, "gradients", ("dq", "dk", "dv"), "backward"), *_backward(longest)],
        "flash_benchmarking": [*_beside_eager(longest), *_memory(longest, one_head(rows))],
        "leaderboard": _leaderboard(leaderboard(rows)),
    }
    return [Problem(name, Markdown(" ").join(filter(None, said))) for name, said in answers.items() if any(said)]


def _errors(rows: pd.DataFrame, what: str, quantities: tuple[str, ...], phase: str) -> Markdown:
    lines = [
        say(
            "{error} in {dtype}{over}",
            error=f"{error:.1e}",
            dtype=dtype,
            over=f" (at most {ratio(over)} that of the plain formula on the same problem)" if over is not None else "",
        )
        for dtype, error, over in largest_errors(rows, quantities, phase)
    ]
    if not lines:
        return Markdown()
    return say(
        "The largest relative error of the {what} against fp64, with {words}, is {errors}.",
        what=what,
        words=WORDS[ours(rows)],
        errors=Markdown(" and ").join(lines),
    )


def _longest(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep ours and eager, by impl and phase, at the longest sequence that both did: first dtype, usual head_dim."""
    timed = ok(rows[rows["impl"].isin([ours(rows), "eager"])])
    if timed.empty:
        return timed
    timed = timed[timed["dtype"] == timed["dtype"].iloc[0]]
    timed = timed[timed["head_dim"] == usual_head_dim(timed)]
    whole = timed.groupby("seq_len").filter(lambda group: len(group) == 2 * len(PHASES))
    mine_first = whole[whole["seq_len"] == whole["seq_len"].max()].sort_values("impl", key=lambda impl: impl == "eager")
    return mine_first.set_index(["impl", "phase"])


def _backward(longest: pd.DataFrame) -> list[Markdown]:
    if longest.empty:
        return []
    mine = longest.loc[longest.index[0][0]]
    return [
        say(
            "In {dtype} at {shape} the backward phase takes {ratio} the time of the forward.",
            dtype=mine["dtype"].iloc[0],
            shape=shape_words(mine.iloc[0]),
            ratio=ratio(mine["median_ms"]["backward"] / mine["median_ms"]["forward"]),
        )
    ]


def _beside_eager(longest: pd.DataFrame) -> list[Markdown]:
    if longest.empty:
        return []
    mine, eager = (longest.loc[impl, BOTH_PHASES] for impl in (longest.index[0][0], "eager"))
    return [
        say(
            "In {dtype} at {shape} forward + backward takes {mine} with ours and {eager} with the plain formula,"
            " {ratio} as long.",
            dtype=mine["dtype"],
            shape=shape_words(mine),
            mine=ms(mine["median_ms"]),
            eager=ms(eager["median_ms"]),
            ratio=ratio(eager["median_ms"] / mine["median_ms"]),
        )
    ]


def _memory(longest: pd.DataFrame, rows: pd.DataFrame) -> list[Markdown]:
    """Say what ours and eager add to the memory of their inputs, and at which length eager ran out of memory."""
    if known(longest, "extra_bytes").empty:
        return []
    mine, eager = (longest.loc[impl, BOTH_PHASES] for impl in (longest.index[0][0], "eager"))
    out = rows[(rows["impl"] == "eager") & (rows["status"] == "oom")]
    return [
        say(
            "Ours adds {mine} to its inputs and the plain formula {eager}{out}.",
            mine=data_size(mine["extra_bytes"]),
            eager=data_size(eager["extra_bytes"]),
            out=f", which runs out of memory at length {out['seq_len'].min()}" if len(out) else "",
        )
    ]


def _leaderboard(rows: pd.DataFrame) -> list[Markdown]:
    """Put ours beside the fastest peer at the leaderboard's shape, in the first dtype with both."""
    pairs = beside_peers(rows)
    if pairs.empty:
        return []
    row = pairs.iloc[0]
    return [
        say(
            "In {dtype} at {shape} forward + backward of ours takes {time} ({rate} TFLOP/s).",
            dtype=row["dtype"],
            shape=shape_words(row),
            time=ms(row["median_ms"]),
            rate=number(row["tflops_per_s"]),
        ),
        say(
            "The fastest of torch's, {words}, takes {time}.",
            words=WORDS[row["impl_peer"]],
            time=ms(row["median_ms_peer"]),
        ),
    ]
