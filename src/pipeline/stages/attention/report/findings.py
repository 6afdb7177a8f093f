"""What the attention tables say: every number and every comparative word of the section's prose."""

import math

import numpy as np
import pandas as pd

from pipeline.formulas import attention
from pipeline.formulas.attention import Shape
from pipeline.report.section import by_word, growth_exponent, ratio_words
from pipeline.report.table_rows import known, ok
from pipeline.stages.attention.cell import MODES, PHASES
from pipeline.stages.attention.report.selection import (
    Memory,
    compile_gains,
    eager,
    host,
    named,
    out_of_memory,
    problems,
    without_workspace,
)

ELEMENT_BYTES = 4  # fp32


def setting(rows: pd.DataFrame) -> dict:
    """Say what was measured, where and how often."""
    measured = ok(host(rows))
    return {
        "machines": list(measured["machine"].unique()),
        "torch": list(measured["torch"].unique()),
        "head_dims": sorted(rows["head_dim"].unique()),
        "lengths": sorted(rows["seq_len"].unique()),
        "batch_sizes": sorted(measured["setting_batch_size"].unique()),
        "masks": ["causal" if causal else "not causal" for causal in sorted(measured["setting_is_causal"].unique())],
        "fewest_passes": int(measured["n"].min()),
        "most_passes": int(measured["n"].max()),
        "warmup_passes": int(measured["setting_warmup_passes"].max()),
        "has_events": bool((rows["clock"] == "cuda_events").any()),
    }


def growth(rows: pd.DataFrame) -> list[dict]:
    """Give, per eager pass, its times at the longest sequence and its growth between the two longest, by head_dim."""
    found = []
    for name in PHASES:
        times = ok(eager(rows)).query("`phase` == @name")
        longest, exponents, seq_len = {}, {}, times["seq_len"].max()
        for head_dim, group in times.groupby("head_dim"):
            two = group.nlargest(2, "seq_len")
            # Growth depends on length: what ends earlier says nothing of the longest sequences.
            if two["seq_len"].iloc[0] < seq_len:
                continue
            longest[named(head_dim)] = two["median_ms"].iloc[0]
            if len(two) > 1:
                exponents[named(head_dim)] = growth_exponent(two["seq_len"], two["median_ms"])
        entry = {"name": name, "longest": pd.Series(longest, dtype=float), "seq_len": int(seq_len)}
        if exponents:
            spread = pd.Series(exponents, dtype=float)
            entry |= {"exponents": spread}
        found.append(entry)
    return found


def memory_end(rows: pd.DataFrame, memory: Memory) -> dict:
    """Say where eager attention runs out of memory: predicted by the formula, and seen; and whether the two agree."""
    shapes = problems(rows, "eager")
    predicted = {}
    for _, row in shapes.drop_duplicates("head_dim").iterrows():
        predicted[named(row["head_dim"])] = _longest_that_fits(row, memory)
    failed = out_of_memory(rows)
    seen = failed[failed["mode"] == "eager"]
    fits = ok(eager(rows).query("`phase` == 'backward'"))
    limits = pd.Series(predicted, dtype=float)
    agree = all(row["seq_len"] > predicted[named(row["head_dim"])] for _, row in seen.iterrows()) and all(
        row["seq_len"] <= predicted[named(row["head_dim"])] for _, row in fits.iterrows()
    )
    return {
        "memory_bytes": memory.size_bytes,
        "predicted": limits,
        "seen": [
            {"mode": mode, "head_dim": named(head_dim), "seq_len": int(group["seq_len"].min())}
            for (mode, head_dim), group in failed.groupby(["mode", "head_dim"], sort=False)
        ],
        "longest_ok": int(fits["seq_len"].max()) if len(fits) else None,
        "agree": agree,
    }


def worked_example(rows: pd.DataFrame, memory: Memory) -> dict:
    """Do the accounting of the smallest problem that ran out of memory, or is predicted to: a line an item.

    Where none ran out, that is the shortest power of two above the predicted limit, at the largest head_dim.
    """
    failed = out_of_memory(rows)
    failed = failed[failed["mode"] == "eager"].sort_values(["seq_len", "head_dim"])
    shapes = problems(rows, "eager")
    if len(failed):
        where = shapes.merge(failed.head(1)[["head_dim", "seq_len"]], on=["head_dim", "seq_len"]).iloc[0]
        shape = _shape(where)
    else:
        where = shapes.loc[shapes["head_dim"].idxmax()]
        limit = _longest_that_fits(where, memory)
        shape = _shape(where, seq_len=2 ** (math.floor(math.log2(max(limit, 1))) + 1))
    vector, matrix = shape.vectors * ELEMENT_BYTES, shape.scores * ELEMENT_BYTES
    temporaries = attention.SOFTMAX_BACKWARD_TEMPORARIES[memory.device_type] * matrix
    peak = attention.peak_bytes(shape, ELEMENT_BYTES, memory.device_type)
    lines = {
        "q, k, v and the gradient of the output": attention.input_bytes(shape, ELEMENT_BYTES),
        "output": vector,
        "scaled queries, saved": vector,
        "softmax output, saved": matrix,
        "its gradient and that of the scores, during the backward pass": 2 * matrix,
        "product of softmax output and its gradient, which CUDA's softmax makes beside them": temporaries,
    }
    lines = {item: count for item, count in lines.items() if count}
    return {
        "seen": bool(len(failed)),
        "head_dim": shape.head_dim,
        "seq_len": shape.seq_len,
        "batch_size": shape.batch_size,
        "lines": lines | {"gradients of the inputs at that moment": peak - sum(lines.values())},
        "matrix_bytes": matrix,
        "peak_bytes": peak,
        "memory_bytes": memory.size_bytes,
        "flash_bytes": attention.flash_saved_bytes(shape),
        "saved_bytes": attention.saved_bytes(shape, ELEMENT_BYTES),
    }


def saved(rows: pd.DataFrame, mode: str) -> dict:
    """Fit what a mode saves for backward as a·S² + b·S by head_dim, and compare a with the derived B·H·e.

    Empty where no head_dim has two lengths.
    """
    measured = known(problems(rows, mode), "saved_bytes")
    quadratic, share = {}, {}
    for head_dim, group in measured.groupby("head_dim"):
        if len(group) < 2:
            continue
        lengths, counted = group["seq_len"].to_numpy(float), group["saved_bytes"].to_numpy(float)
        a = _fit_quadratic(lengths, counted)
        quadratic[named(head_dim)] = a
        if lengths.max() == measured["seq_len"].max():
            share[named(head_dim)] = a * lengths.max() ** 2 / counted[lengths.argmax()]
    if not quadratic:
        return {}
    first = measured.iloc[0]
    derived = first["setting_batch_size"] * ELEMENT_BYTES
    fitted = pd.Series(quadratic)
    return {
        "mode": mode,
        "quadratic": fitted,
        "share": pd.Series(share, dtype=float),
        "derived": derived,
        "matrices": fitted.median() / derived,
        "agrees": bool(np.allclose(fitted, derived, rtol=0.02)),
        "seq_len": int(measured["seq_len"].max()),
    }


def _fit_quadratic(lengths: np.ndarray, counted: np.ndarray) -> float:
    """Fit counted ≈ a·S² + b·S, every length weighing the same (least squares of the relative error); return a."""
    columns = np.stack([lengths**2, lengths], axis=1) / counted[:, None]
    (a, _b), *_ = np.linalg.lstsq(columns, np.ones_like(counted), rcond=None)
    return float(a)


def allocated(rows: pd.DataFrame) -> list[dict]:
    """Compare, per mode, the allocator's bytes with the formulas' at the longest sequence; empty without a GPU."""
    found = []
    for mode in MODES:
        measured = known(problems(rows, mode), "peak_bytes")
        if measured.empty:
            continue
        longest = measured.nlargest(1, "seq_len", keep="all").set_index("head_dim")
        longest.index = longest.index.map(named)
        tensors = without_workspace(longest)
        found.append(
            {
                "mode": mode,
                "seq_len": int(longest["seq_len"].max()),
                "before_backward": longest["before_backward_bytes"],
                "before_over_model": tensors["before_backward_bytes"] / longest["model_before_backward_bytes"],
                "peak": longest["peak_bytes"],
                "peak_over_model": tensors["peak_bytes"] / longest["model_peak_bytes"],
                "workspace": longest["workspace_bytes"],
            }
        )
    return found


def compilation(rows: pd.DataFrame) -> list[dict]:
    """Give, per pass, the eager time over the compiled: by head_dim at the longest length, and over the grid.

    No mean over the grid: where the launch decides and where memory traffic does, compiling does different things.
    """
    gains = ok(compile_gains(rows))
    found = []
    for name, group in gains.groupby("phase", sort=False):
        longest = group[group["seq_len"] == group["seq_len"].max()].set_index("head_dim")
        longest.index = longest.index.map(named)
        found.append(
            {
                "name": name,
                "count": len(group),
                "seq_len": int(longest["seq_len"].max()),
                "longest": longest["median_ratio"],
                "by_word": _lengths_by_word(group),
                "least": group.loc[group["median_ratio"].idxmin(), ["median_ratio", "head_dim", "seq_len"]].to_dict(),
                "most": group.loc[group["median_ratio"].idxmax(), ["median_ratio", "head_dim", "seq_len"]].to_dict(),
            }
        )
    return found


def _lengths_by_word(gains: pd.DataFrame) -> dict[str, dict]:
    """Count, for each word on compiled beside eager, the problems that it is said of, and list their lengths."""
    by_length = gains.sort_values("seq_len", kind="stable")
    words = ratio_words(by_length, by_length["seq_len"])
    return {
        word: {"count": len(lengths), "lengths": list(dict.fromkeys(lengths))}
        for word, lengths in by_word(words).items()
    }


def _longest_that_fits(row: pd.Series, memory: Memory) -> int:
    return attention.longest_that_fits(_shape(row), ELEMENT_BYTES, memory.device_type, memory.size_bytes)


def _shape(row: pd.Series, seq_len: int | None = None) -> Shape:
    length = int(row["seq_len"]) if seq_len is None else seq_len
    return Shape(int(row["setting_batch_size"]), 1, length, int(row["head_dim"]), bool(row["setting_is_causal"]))
