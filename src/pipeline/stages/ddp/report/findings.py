"""What the ddp tables say: every number and every comparative word of the section's prose."""

import pandas as pd

from pipeline.report.side_by_side import against, training_setting
from pipeline.report.table_rows import ok
from pipeline.stages.ddp.report.selection import BUCKETED, OURS, TORCHS, captures, medians, phases, steps

# Times nearer to each other than this are the same: variants differ by a few per cent of a step.
TOLERANCE = 0.01
MOST = 0.5  # more than this share of something is most of it


def setting(rows: pd.DataFrame) -> dict:
    """Say what was measured, where and how often."""
    found = ok(rows)
    return {
        **training_setting(found),
        "rounds": int(found["setting_rounds"].max()),
        "gradient_mb": float(found["gradient_bytes"].max() / 2**20),
    }


def by_cell(rows: pd.DataFrame) -> list[dict]:
    """Give, for every cell of which something was measured, all that the section says of it."""
    return [_cell(name, cell) for name, cell in rows.groupby("cell_name", sort=False) if not ok(steps(cell)).empty]


def _cell(name: str, rows: pd.DataFrame) -> dict:
    whole, shares = ok(steps(rows)).set_index("variant"), hidden(rows)
    return {
        "name": name,
        "times": medians(rows).to_dict("index"),
        "weights": weights(whole),
        "flat_vs_naive": against(whole, "flat", "naive", TOLERANCE),
        "overlap_vs_naive": against(whole, "overlap", "naive", TOLERANCE),
        "overlap_vs_flat": against(whole, "overlap", "flat", TOLERANCE),
        "hidden": shares,
        "hides_little": shares.get("overlap", 1.0) < MOST,
        "slowed": slowed(rows, whole),
        "buckets": buckets(whole),
        "best": best(whole),
    }


def weights(whole: pd.DataFrame) -> dict:
    """Judge the weights after the timed steps: between ranks, and between the variants that average.

    Returns the largest differences and where they are, whether they are within the tolerance, and how far the
    weights without communication are from the others: what the comparison shows where averaging is missing.
    """
    averaging = whole.drop(index="no communication", errors="ignore")
    tolerance = float(whole["weight_tolerance"].iloc[0])
    differences = averaging["variant_difference"].dropna()
    if averaging.empty or len(differences) < 2:
        return {}
    without = whole["variant_difference"].get("no communication", float("nan"))
    return {
        "variants": len(differences),
        "between_ranks": averaging["rank_difference"].max(),
        "between_variants": differences.max(),
        "worst": differences.idxmax(),
        "tolerance": tolerance,
        "agree": bool((averaging["rank_difference"] == 0).all() and (differences <= tolerance).all()),
        "without": without if pd.notna(without) else None,
    }


def overheads(whole: pd.DataFrame) -> pd.Series:
    """Return what each variant's step takes beyond a step without communication, in ms; empty without that one."""
    if "no communication" not in whole.index:
        return pd.Series(dtype=float)
    steps_ms = whole["median_ms"]
    return (steps_ms - steps_ms["no communication"]).drop(index="no communication")


def hidden(rows: pd.DataFrame) -> pd.Series:
    """Give the share of the communication that ran beside computation, by variant, as the captures show it."""
    found = captures(rows).dropna(subset=["hidden_pct"]).set_index("variant")
    return found["hidden_pct"] / 100


def slowed(rows: pd.DataFrame, whole: pd.DataFrame) -> dict:
    """Tell by how much communication beside it slows the computation down, where that is most of what it costs.

    Held against each other are the computing times of the captured steps with and without overlap, and what the
    overlapped step takes beyond one without communication.
    """
    beyond_ms = overheads(whole).get("overlap", 0.0)
    computing_ms = captures(rows).set_index("variant")["computation_ms"]
    if not {"naive", "overlap"} <= set(computing_ms.index):
        return {}
    longer_ms = computing_ms["overlap"] - computing_ms["naive"]
    if longer_ms < TOLERANCE * computing_ms["naive"] or longer_ms < MOST * beyond_ms:
        return {}
    return {
        "longer_ms": longer_ms,
        "beside_ms": computing_ms["overlap"],
        "alone_ms": computing_ms["naive"],
        "beyond_ms": beyond_ms,
    }


def buckets(whole: pd.DataFrame) -> dict:
    """Tell which bucket size is the fastest, which others are as fast and which slower, and whether the ends are.

    Sizes that give the same number of buckets are the same thing: the smallest stands for them.
    """
    all_sizes = whole[whole.index.isin(BUCKETED)]
    if all_sizes.empty:
        return {}
    single = list(all_sizes.index[all_sizes["all_reduces"] == 1])
    found = all_sizes.drop_duplicates("all_reduces")
    fastest = found["median_ms"].idxmin()
    words = {name: against(whole, name, fastest, TOLERANCE)["word"] for name in found.index if name != fastest}
    slower = [name for name, word in words.items() if word == "slower than"]
    return {
        "different": len(found),
        "fastest": fastest,
        "fastest_ms": found.loc[fastest, "median_ms"],
        "fastest_calls": int(found.loc[fastest, "all_reduces"]),
        "level": [name for name in words if name not in slower],
        "slower": slower,
        "slowest_beyond": float(found["median_ms"].max() / found["median_ms"].min() - 1),
        "smallest_loses": found.index[0] in slower,
        "largest_loses": found.index[-1] in slower,
        "single": single,
        "single_vs_flat": against(whole, single[0], "flat", TOLERANCE) if single else {},
        "vs_overlap": against(whole, fastest, "overlap", TOLERANCE),
        "filling": _filling(whole, found.index[0]),
    }


def _filling(whole: pd.DataFrame, smallest: str) -> dict:
    """Hold the smallest buckets against none, where those make no fewer calls and are faster; empty where not."""
    found = against(whole, smallest, "overlap", TOLERANCE)
    if not found or found["word"] != "slower than":
        return {}
    calls = whole["all_reduces"].astype(int)
    return found | {"calls": calls["overlap"]} if calls["overlap"] >= calls[smallest] else {}


def best(whole: pd.DataFrame) -> dict:
    """Hold the fastest of ours against the fastest of torch's, and against no communication."""
    ours, torchs = (whole.loc[whole.index.isin(names), "median_ms"] for names in (OURS, TORCHS))
    if ours.empty:
        return {}
    fastest = ours.idxmin()
    words = {name: against(whole, name, fastest, TOLERANCE)["word"] for name in ours.index if name != fastest}
    return {
        "variant": fastest,
        "ms": ours[fastest],
        "level": [name for name, word in words.items() if word != "slower than"],
        "vs_torch": against(whole, fastest, torchs.idxmin(), TOLERANCE) if len(torchs) else {},
        "vs_none": against(whole, fastest, "no communication", TOLERANCE),
    }


def outcomes(rows: pd.DataFrame) -> pd.DataFrame:
    """List what has no figure, or an unstable one: a row a cell, status and reason, with its variants."""
    failed = steps(rows)[steps(rows)["status"] != "ok"].fillna({"reason": ""})
    keys = ["cell_name", "status", "reason"]
    return failed.groupby(keys, sort=False)["variant"].agg(list).reset_index()


def clocks(rows: pd.DataFrame) -> float | None:
    """Return the largest relative difference between a step by CUDA events and by the host clock; None on a CPU."""
    both = ok(rows)[ok(rows)["phase"] == "train_step"]
    both = both.pivot(index=["cell_name", "variant"], columns="clock", values="median_ms")
    if "cuda_events" not in both:
        return None
    return float(((both["host"] - both["cuda_events"]).abs() / both["host"]).max())


def waits_in_backward(rows: pd.DataFrame) -> bool:
    """Tell whether a variant has no phase of its own for what is left of its communication."""
    have = set(phases(ok(rows)).query("phase == 'communication'")["variant"])
    return any(name in set(ok(rows)["variant"]) - have for name in TORCHS)
