"""What the profile tables say: every number and every comparative word of the section's prose."""

import pandas as pd

from pipeline.report.section import compare
from pipeline.stages.profile.cell import ATTENTION_PHASES, BACKWARD, PASSES
from pipeline.stages.profile.report.selection import (
    CELL,
    WORDS,
    at_context,
    kernels,
    of_host_clock,
    of_kind,
    shares,
    times,
)
from pipeline.stages.profile.report.shown_names import shown_name

# How near the capture's span must be to the host clock to be called the same.
SAME_TIME = 0.03
MATMUL = "matmul"
NOT_TO_NAME = (MATMUL, "other")
CONFIGURATION = ["precision", "size", "context_length"]


def setting(rows: pd.DataFrame) -> dict:
    """Say what was captured, where, how often, and by which profiler."""
    captured = of_kind(rows, "category")
    notes = captured["not_by_nsys"].dropna().unique() if "not_by_nsys" in captured else []
    return {
        "machines": list(captured["machine"].unique()),
        "torch": list(captured["torch"].unique()),
        "sizes": list(captured["size"].unique()),
        "contexts": sorted(captured["context_length"].unique()),
        "precisions": list(captured["precision"].unique()),
        "batch_sizes": sorted(captured["setting_batch_size"].unique()),
        "rounds": sorted(captured["setting_captured_rounds"].unique()),
        "profilers": list(captured["captured_by"].unique()),
        "not_by_nsys": list(notes),
        "on_gpu": bool((captured["cuda"] != "none").any() and not _are_operators(rows)),
    }


def _are_operators(rows: pd.DataFrame) -> bool:
    return bool(of_kind(rows, "kernel")["kernel"].str.startswith("aten::").any())


def forward_time(rows: pd.DataFrame, context_length: int) -> list[dict]:
    """Compare, per precision, the forward pass's span in the capture with the host clock, by size.

    around: where the span is the shorter, and the pass by the host clock under the profiler is not: the difference is
    what lies around the kernels. slowed: where the span is the longer, and most of it the profiler's doing. waiting:
    those of them whose kernels take less than the host clock, so that it is launches that the profiler slows.
    """
    found = []
    table = at_context(times(rows), context_length)
    for precision, group in table[table["range"] == "inference"].groupby("precision", sort=False):
        group = group.set_index("size")
        host, span, profiled = group["host"], group["span"], group["profiled"]
        difference, slowdown = span / host - 1, profiled / host - 1
        shorter, longer = difference < -SAME_TIME, difference > SAME_TIME
        around = shorter & (profiled - span >= 0.5 * (host - span))
        slowed = longer & (slowdown >= 0.5 * difference)
        waiting = slowed & (group["busy"] < host)
        found.append(
            {
                "precision": precision,
                "span": span,
                "host": host,
                "difference": difference.abs(),
                "same": _names(~shorter & ~longer),
                "shorter": _names(shorter),
                "longer": _names(longer),
                "around": _names(around),
                "slowed": _names(slowed),
                "slowdown": slowdown[slowed],
                "waiting": _names(waiting),
                "busy": group["busy"][waiting],
                "unstable": _names(group["unstable"]),
                "idle": 1 - group["busy"] / span,
            }
        )
    return found


def _names(chosen: pd.Series) -> list[str]:
    return list(chosen.index[chosen])


def top_kernels(rows: pd.DataFrame, context_length: int) -> pd.DataFrame:
    """Give the kernel with the most time of each cell's passes.

    Columns: CELL, and for inference, backward and forward_backward each <name>, <name>_count, <name>_share (0 to 1).
    """
    table = None
    names = {"inference": "inference", "backward": BACKWARD, "forward_backward": "forward_backward"}
    for name, path in names.items():
        first = at_context(kernels(rows, path), context_length).query("rank == 1")
        columns = {"kernel": name, "count": f"{name}_count", "share_pct": f"{name}_share"}
        first = first[[*CELL, *columns]].rename(columns=columns)
        first[f"{name}_share"] /= 100
        table = first if table is None else table.merge(first, on=CELL, how="left")
    return table


def top_kernel_words(top: pd.DataFrame) -> list[dict]:
    """Say, per precision, which kernels lead the forward pass, and for which sizes they lead backward and both too."""
    found = []
    for precision, group in top.groupby("precision", sort=False):
        both = group[group["forward_backward"].notna()]
        backward = group[group["backward"].notna()]
        same_in_both = both["inference"] == both["forward_backward"]
        same_in_backward = backward["inference"] == backward["backward"]
        found.append(
            {
                "precision": precision,
                "leaders": [
                    {
                        "shown": shown_name(kernel),
                        "sizes": list(sizes["size"]),
                        "share": sizes.set_index("size")["inference_share"],
                    }
                    | {"count": sizes.set_index("size")["inference_count"]}
                    for kernel, sizes in group.groupby("inference", sort=False)
                ],
                "same_in_both": list(both["size"][same_in_both]),
                "other_in_both": list(both["size"][~same_in_both]),
                "same_in_backward": list(backward["size"][same_in_backward]),
                "other_in_backward": list(backward["size"][~same_in_backward]),
            }
        )
    return found


def beside_matmul(rows: pd.DataFrame, context_length: int) -> list[dict]:
    """Give, per precision, the forward pass's share without matrix products, and the kinds of work that it is."""
    table = at_context(shares(rows), context_length)
    found = []
    for precision, group in table[table["range"] == "inference"].groupby("precision", sort=False):
        group = group.set_index("size").drop(columns=["range", *[name for name in CELL if name != "size"]])
        known = group.drop(columns=[name for name in NOT_TO_NAME if name in group])
        largest = known.mean().sort_values(ascending=False)
        found.append(
            {
                "precision": precision,
                "share": 1 - group[MATMUL],
                "kinds": [{"name": name, "share": known[name]} for name in largest.index[:4] if largest[name] >= 0.01],
            }
        )
    return found


def unknown_share(rows: pd.DataFrame) -> float:
    """Give the largest share of any pass's kernel time that no rule knows a category for."""
    table = shares(rows)
    return float(table["other"].max()) if "other" in table else 0.0


def training_against_inference(rows: pd.DataFrame, context_length: int) -> list[dict]:
    """Compare, per precision, the categories' shares of a training step with those of inference, by size."""
    table = at_context(shares(rows), context_length)
    table = table.drop(columns=["context_length", "profiler"])
    found = []
    for precision, group in table.groupby("precision", sort=False):
        by_pass = {name: part.set_index("size") for name, part in group.groupby("range")}
        if not {"inference", "train_step"} <= set(by_pass):
            continue
        inference, training = (
            by_pass[name].drop(columns=["precision", "range"]) for name in ("inference", "train_step")
        )
        inference = inference.loc[training.index]
        change = (training - inference).mean().drop(MATMUL)
        gains = change[change >= 0.01].sort_values(ascending=False)
        losses = change[change <= -0.01].sort_values()
        mean_training, mean_inference = training[MATMUL].mean(), inference[MATMUL].mean()
        found.append(
            {
                "precision": precision,
                "inference": inference[MATMUL],
                "training": training[MATMUL],
                "word": {"slower than": "higher", "faster than": "lower"}.get(
                    compare(mean_training, mean_inference), ""
                ),
                "gains": [{"name": n, "from": inference[n].mean(), "to": training[n].mean()} for n in gains.index[:3]],
                "losses": [
                    {"name": n, "from": inference[n].mean(), "to": training[n].mean()} for n in losses.index[:3]
                ],
            }
        )
    return found


def attention(rows: pd.DataFrame, path: str = "inference") -> pd.DataFrame:
    """Set softmax beside the two products inside attention, of inference or BACKWARD_BY_PART: a row a cell.

    Columns: CELL; scores_ms, softmax_ms, final_ms: all of a phase; products_ms: the matrix products of both matmul
    phases alone; time_ratio: products over softmax; flops_ratio: their FLOPs over softmax's; products_tflops_per_s,
    softmax_tflops_per_s.
    """
    found = of_kind(rows, "attention")
    found = found[found["range"] == path]
    if found.empty:
        return pd.DataFrame(columns=[*CELL, "time_ratio"])
    wide = found.pivot(index=CELL, columns="phase", values=["time_ms", "matmul_ms", "flops"])
    wide = wide.loc[pd.MultiIndex.from_frame(found[CELL].drop_duplicates())]
    scores, softmax, final = ATTENTION_PHASES
    products_ms = wide["matmul_ms"][scores] + wide["matmul_ms"][final]
    products_flops = wide["flops"][scores] + wide["flops"][final]
    table = pd.DataFrame(
        {
            "scores_ms": wide["time_ms"][scores],
            "softmax_ms": wide["time_ms"][softmax],
            "final_ms": wide["time_ms"][final],
            "products_ms": products_ms,
            "time_ratio": products_ms / wide["time_ms"][softmax],
            "flops_ratio": products_flops / wide["flops"][softmax],
            "products_tflops_per_s": products_flops / products_ms / 1e9,
            "softmax_tflops_per_s": wide["flops"][softmax] / wide["time_ms"][softmax] / 1e9,
        }
    )
    return table.reset_index()


def attention_words(table: pd.DataFrame, context_length: int) -> list[dict]:
    """Say, per precision, how softmax and the products compare in time and FLOPs at one context length, by size."""
    found = []
    for precision, group in at_context(table, context_length).groupby("precision", sort=False):
        group = group.set_index("size")
        rate_ratio = group["products_tflops_per_s"] / group["softmax_tflops_per_s"]
        found.append(
            {
                "precision": precision,
                "time_ratio": group["time_ratio"],
                "flops_ratio": group["flops_ratio"],
                "rate_ratio": rate_ratio,
                "slower_per_flop": bool((rate_ratio > 1).all()),
            }
        )
    return found


def two_profilers(rows: pd.DataFrame) -> pd.DataFrame:
    """Set the configurations that more than one profiler captured side by side: the columns of `times`, captured_by."""
    by = of_kind(rows, "category")[[*CELL, "captured_by"]].drop_duplicates()
    table = times(rows).merge(by, on=CELL)
    table = table[table["range"].isin(PASSES)]
    table = table[table.groupby([*CONFIGURATION, "range"])["captured_by"].transform("nunique") > 1]
    place = table["range"].map(PASSES.index)
    return table.assign(place=place).sort_values([*CONFIGURATION, "place"], kind="stable").drop(columns="place")


def two_profilers_words(table: pd.DataFrame) -> dict:
    """Say how far the profilers differ in the kernels' time, and by how much each slows the passes; empty if none."""
    if table.empty:
        return {}
    sums = table.groupby([*CONFIGURATION, "range"])["kernel_sum"]
    slowdown = (table["profiled"] / table["host"] - 1).groupby(table["captured_by"], sort=False)
    return {
        "apart": float((sums.max() / sums.min() - 1).max()),
        "slowdown": [{"profiler": name, "low": found.min(), "high": found.max()} for name, found in slowdown],
    }


def outcomes(rows: pd.DataFrame) -> pd.DataFrame:
    """List what has no figure, or an unstable one: columns CELL, status, reason, passes."""
    failed = of_host_clock(rows)
    failed = failed[failed["status"] != "ok"]
    failed = failed.assign(reason=failed["reason"].fillna(""))
    passes = failed.groupby([*CELL, "status", "reason"], sort=False)["range"].agg(list).reset_index(name="passes")
    every = passes["passes"].map(lambda names: set(names) == set(PASSES))
    passes["passes"] = passes["passes"].map(lambda names: ", ".join(map(WORDS.get, names))).mask(every, "all")
    return passes
