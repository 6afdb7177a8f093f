"""The assignment's problems on FlashAttention-2, each answered in two sentences."""

import pandas as pd

from pipeline.report.page_parts import Problem
from pipeline.report.section import data_size, listing, ms, number, ratio
from pipeline.report.side_by_side import step_words
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
        "flash_backward": [_errors(rows, "gradients", ("dq", "dk", "dv"), "backward"), _backward(longest)],
        "flash_benchmarking": [_beside_eager(longest), _memory(longest, one_head(rows))],
        "leaderboard": [_leaderboard(beside_peers(leaderboard(rows)))],
    }
    return [Problem(name, " ".join(filter(None, said))) for name, said in answers.items() if any(said)]


def _errors(rows: pd.DataFrame, what: str, quantities: tuple[str, ...], phase: str) -> str:
    errors, mine = largest_errors(rows, quantities, phase), ours(rows)
    if not errors or mine is None:
        return ""
    largest = listing(f"{error:.1e} in {dtype}" for dtype, error, _ in errors)
    over_plain = listing(f"{ratio(over)} in {dtype}" for dtype, _, over in errors if over is not None)
    beside = f", at most {over_plain} that of plain attention on the same problem" if over_plain else ""
    return f"The largest relative error of the {what} against fp64, with {WORDS[mine]}, is {largest}{beside}."


def _longest(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep ours and eager, by "ours" or "eager" and phase, at the longest sequence that both did.

    Of the first dtype and the usual head_dim.
    """
    timed = ok(rows[rows["impl"].isin([ours(rows), "eager"])])
    if timed.empty:
        return timed
    timed = timed[timed["dtype"] == timed["dtype"].iloc[0]]
    timed = timed[timed["head_dim"] == usual_head_dim(timed)]
    whole = timed.groupby("seq_len").filter(lambda group: len(group) == 2 * len(PHASES))
    whole = whole.assign(who=whole["impl"].where(whole["impl"] == "eager", "ours"))
    return whole[whole["seq_len"] == whole["seq_len"].max()].set_index(["who", "phase"])


def _backward(longest: pd.DataFrame) -> str:
    if longest.empty:
        return ""
    forward, backward = (longest.loc[("ours", phase)] for phase in ("forward", "backward"))
    gain = ratio(backward["median_ms"] / forward["median_ms"])
    return f"In {forward['dtype']} at {shape_words(forward)} the backward phase takes {gain} the time of the forward."


def _beside_eager(longest: pd.DataFrame) -> str:
    if longest.empty:
        return ""
    mine, eager = (longest.loc[(who, BOTH_PHASES)] for who in ("ours", "eager"))
    return (
        f"In {mine['dtype']} at {shape_words(mine)} forward + backward takes {step_words(mine)} with ours; plain "
        f"attention takes {step_words(eager)}, {ratio(eager['median_ms'] / mine['median_ms'])} as long."
    )


def _memory(longest: pd.DataFrame, rows: pd.DataFrame) -> str:
    """Say what ours and eager add to the memory of their inputs, and at which length eager ran out of memory."""
    if known(longest, "extra_bytes").empty:
        return ""
    mine, eager = (data_size(longest.loc[(who, BOTH_PHASES), "extra_bytes"]) for who in ("ours", "eager"))
    out = rows[(rows["impl"] == "eager") & (rows["status"] == "oom")]
    ran_out = f", which runs out of memory at length {out['seq_len'].min()}" if len(out) else ""
    return f"Ours adds {mine} to its inputs and plain attention {eager}{ran_out}."


def _leaderboard(pairs: pd.DataFrame) -> str:
    """Put ours beside the fastest peer at the leaderboard's shape, in the first dtype with both."""
    if pairs.empty:
        return ""
    row = pairs.iloc[0]
    return (
        f"In {row['dtype']} at {shape_words(row)} forward + backward of ours takes {step_words(row)} "
        f"({number(row['tflops_per_s'])} TFLOP/s). The fastest of torch's, {WORDS[row['impl_peer']]}, takes "
        f"{ms(row['median_ms_peer'])}."
    )
