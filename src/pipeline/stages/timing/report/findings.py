"""What the timing tables say: every number and every comparative word of the section's prose."""

import pandas as pd

from pipeline.report.section import (
    TOLERANCE,
    by_word,
    compare,
    growth_exponent,
    growth_word,
    mark_unstable,
    ratio_words,
    trend,
)
from pipeline.report.table_rows import ok
from pipeline.stages.timing.report.selection import (
    at_context,
    by_pass,
    first_steps,
    host,
    main_grid,
    ratios,
    unstable_by_pass,
)

SMALL_SPREAD = 0.05
# The share of figures that must be within it before the spread as a whole is called small.
NEARLY_ALL = 0.9
CELL = ["precision", "size", "context_length", "mode", "phase"]


def setting(rows: pd.DataFrame) -> dict:
    """Say what was measured, where and how often."""
    grid = ok(main_grid(rows))
    return {
        "machines": list(grid["machine"].unique()),
        "torch": list(grid["torch"].unique()),
        "sizes": list(grid["size"].unique()),
        "contexts": sorted(grid["context_length"].unique()),
        "precisions": list(grid["precision"].unique()),
        "batch_sizes": sorted(grid["setting_batch_size"].unique()),
        "warmup_steps": int(grid["warmup_steps"].max()),
        "fewest_steps": int(grid["n"].min()),
        "most_steps": int(grid["n"].max()),
        "step_limit": int(grid["setting_max_steps"].max()),
        "at_step_limit": (grid["n"] >= grid["setting_max_steps"]).mean(),
        "budget_ms": 1000 * grid["setting_budget_s"].max(),
        "has_events": bool((grid["clock"] == "cuda_events").any()),
    }


def median_errors(rows: pd.DataFrame) -> dict:
    """Give the standard error of the medians over the median: the typical, of nine in ten at most, the largest."""
    errors = ok(host(main_grid(rows)))["rel_error"].dropna()
    if errors.empty:
        return {}
    nine_in_ten = errors.quantile(0.9, interpolation="higher")
    return {"typical": errors.median(), "nine_in_ten": nine_in_ten, "largest": errors.max()}


def passes(rows: pd.DataFrame, context_length: int) -> list[dict]:
    """Give, per precision, the median times of the passes by size at one context length, and their ratios."""
    grid = at_context(ok(host(main_grid(rows))), context_length)
    found = []
    for precision, group in grid.groupby("precision", sort=False):
        medians, unstable = by_pass(group, "median_ms"), unstable_by_pass(group)
        entry = {name: mark_unstable(medians[name], unstable[name]) for name in ("forward", "backward", "train_step")}
        for name, above, below in (
            ("backward_over_forward", "backward", "forward"),
            ("optimizer_share", "optimizer", "train_step"),
        ):
            ratio = medians[above] / medians[below]
            entry[name] = mark_unstable(ratio, unstable[above] | unstable[below])
        found.append({"precision": precision, **entry})
    return found


def variability(rows: pd.DataFrame) -> dict:
    """Give the relative standard deviation of the warm steps: the typical one, the largest, and where.

    With it, how many figures have a small one: `within_limit`, a share of all, and `above_limit`, by precision the
    share that has not, where there are any.
    """
    grid = ok(host(main_grid(rows)))
    grid = grid[grid["std_ms"].notna()]
    if grid.empty:
        return {}
    shares = grid["std_ms"] / grid["mean_ms"]
    within = shares <= SMALL_SPREAD
    above = (~within).groupby(grid["precision"], sort=False).mean()
    return {
        "typical": shares.median(),
        "largest": shares.max(),
        "worst": grid.loc[shares.idxmax()].to_dict(),
        "limit": SMALL_SPREAD,
        "within_limit": within.mean(),
        "is_small": within.mean() >= NEARLY_ALL,
        "above_limit": above[above > 0].to_dict(),
    }


def growth(rows: pd.DataFrame) -> list[dict]:
    """Fit, per precision, how the train step grows with context length, for sizes with two lengths or more."""
    steps = ok(host(main_grid(rows))).query("`phase` == 'train_step'")
    found = []
    for precision, group in steps.groupby("precision", sort=False):
        exponents = pd.Series(
            {
                size: growth_exponent(lengths["context_length"], lengths["median_ms"])
                for size, lengths in group.groupby("size", sort=False)
                if len(lengths) > 1
            },
            dtype=float,
        )
        if not exponents.empty:
            unstable = (group["status"] == "unstable").groupby(group["size"]).any()
            found.append(
                {
                    "precision": precision,
                    "exponents": mark_unstable(exponents, unstable[exponents.index]),
                    "largest_size": exponents.index[-1],
                    "word": growth_word(exponents.iloc[-1]),
                }
            )
    return found


def throughput(rows: pd.DataFrame, context_length: int) -> list[dict]:
    """Give, per precision, tokens per second and MFU of the train step by size at one context length."""
    grid = at_context(ok(host(main_grid(rows))), context_length).query("`phase` == 'train_step'")
    found = []
    for precision, group in grid.groupby("precision", sort=False):
        group = group.set_index("size")
        unstable = group["status"] == "unstable"
        mfu = group["mfu_pct"].dropna() / 100
        found.append(
            {
                "precision": precision,
                "tokens_per_s": mark_unstable(group["tokens_per_s"], unstable),
                "mfu": mark_unstable(mfu, unstable[mfu.index]),
                "mfu_trend": trend(mfu) if len(mfu) > 1 else None,
                "peak_tflops_per_s": group["peak_tflops_per_s"].max(),
                "peak_source": group["peak_source"].iloc[0],
            }
        )
    return found


def warmup(rows: pd.DataFrame) -> dict:
    """Compare each count of warm-up steps with the longest: first step, mean and spread, by size.

    A first step is judged against the noise of its size: the spread after the longest warm-up. Empty where no start
    without warm-up was measured.
    """
    steps = first_steps(rows)
    if steps.empty:
        return {}
    warm = steps[steps["warmup_steps"] == steps["warmup_steps"].max()]
    noise = _spread(warm)
    counts = [
        {"warmup_steps": count, **_first_steps_facts(group, noise)} for count, group in steps.groupby("warmup_steps")
    ]
    return {
        "precision": steps["precision"].iloc[0],
        "context_length": steps["context_length"].iloc[0],
        "steps": steps["step"].max(),
        "cold": counts[0],
        "between": counts[1:-1],
        "warm": counts[-1],
    }


def _spread(steps: pd.DataFrame) -> pd.Series:
    """Return the relative standard deviation of the steps by size."""
    by_size = steps.groupby("size", sort=False)["relative"]
    return by_size.std() / by_size.mean()


def _first_steps_facts(steps: pd.DataFrame, noise: pd.Series) -> dict:
    """Give the first step, the means with and without it and the spread by size, and the sizes whose first is slow."""
    by_size = steps.groupby("size", sort=False)
    first = by_size["relative"].first()
    by_name = {
        "first": first,
        "mean": by_size["relative"].mean(),
        "mean_of_rest": steps[steps["step"] > 1].groupby("size", sort=False)["relative"].mean(),
        "spread": _spread(steps),
    }
    unstable = by_size["unstable"].any()
    slow = [compare(first[size], 1, max(TOLERANCE, noise[size])) == "slower than" for size in first.index]
    return {
        **{name: mark_unstable(values, unstable[values.index]) for name, values in by_name.items()},
        "slow_sizes": [size for size, is_slow in zip(first.index, slow, strict=True) if is_slow],
        "other_sizes": [size for size, is_slow in zip(first.index, slow, strict=True) if not is_slow],
    }


def sizes_by_word(gains: pd.DataFrame) -> dict[str, list[str]]:
    """Group the sizes by the word that their ratio of train steps gives."""
    steps = gains[gains["phase"] == "train_step"]
    return by_word(ratio_words(steps, steps["size"]))


def precision_gains(rows: pd.DataFrame, context_length: int) -> list[dict]:
    """Give, per lower precision, the fp32 time over its time by size, for each pass at one context length."""
    grid = at_context(host(main_grid(rows)), context_length)
    found = []
    for precision in [name for name in ok(grid)["precision"].unique() if name != "fp32"]:
        gains = ok(_gain_over_fp32(grid, precision))
        if gains.empty:
            continue
        ratio, unstable = by_pass(gains, "median_ratio"), unstable_by_pass(gains)
        step, words = ratio["train_step"], sizes_by_word(gains)
        found.append(
            {
                "precision": precision,
                "step": mark_unstable(step, unstable["train_step"]),
                **{name: mark_unstable(ratio[name], unstable[name]) for name in ("forward", "backward")},
                "optimizer_word": compare(1, ratio["optimizer"].median()),
                "sizes_by_word": words,
                "trend": trend(step) if len(step) > 1 and "not told apart from" not in words else None,
            }
        )
    return found


def _gain_over_fp32(rows: pd.DataFrame, precision: str) -> pd.DataFrame:
    keys = ["size", "context_length", "phase"]
    return ratios(rows[rows["precision"] == "fp32"], rows[rows["precision"] == precision], keys)


def gains_over_fp32(rows: pd.DataFrame) -> pd.DataFrame:
    """Divide fp32 times by those of each other precision, for all sizes, lengths and passes, status kept."""
    grid = host(main_grid(rows))
    others = [name for name in ok(grid)["precision"].unique() if name != "fp32"]
    return pd.concat(
        [pd.DataFrame(), *(_gain_over_fp32(grid, name).assign(precision=name) for name in others)],
        ignore_index=True,
    )


def clocks(rows: pd.DataFrame) -> dict:
    """Compare the host clock with CUDA events: the typical and the largest difference, and where it is."""
    warm = ok(main_grid(rows))
    both = warm.pivot(index=CELL, columns="clock", values="median_ms").dropna()
    if "cuda_events" not in both or both.empty:
        return {}
    difference = (both["host"] - both["cuda_events"]) / both["host"]
    at = difference.abs().idxmax()
    return {
        "typical": difference.abs().median(),
        "largest": difference.abs().max(),
        "word": "longer" if difference[at] > 0 else "shorter",
        "where": dict(zip(CELL, at, strict=True)),
    }


def outcomes(rows: pd.DataFrame) -> pd.DataFrame:
    """List what has no figure, or an unstable one: a row per cell, with the passes that it concerns.

    Columns precision, mode, size, context_length, warmup_steps, status, reason, pass.
    """
    failed = host(rows)[host(rows)["status"] != "ok"].fillna({"reason": ""})
    keys = ["precision", "mode", "size", "context_length", "warmup_steps", "status", "reason"]
    return failed.groupby(keys, sort=False)["phase"].agg(list).reset_index()
