"""The timing section: its tables and figures, and a template that says what they show."""

from pathlib import Path

import pandas as pd

from pipeline.report.markup import Markdown
from pipeline.report.section import render
from pipeline.report.table_rows import ok
from pipeline.report.tables import (
    OUTCOME_WORDS,
    fold,
    markdown,
    markdown_folded_if_long,
    mean_std,
    mean_std_cells,
    median_cells,
    number_cells,
    pivot,
    significant,
    with_outcomes,
)
from pipeline.stages.timing.report import baselines, compile_findings, findings
from pipeline.stages.timing.report.figures import draw_all
from pipeline.stages.timing.report.selection import (
    PHASES,
    READING_ORDER,
    at_context,
    eager_and_compiled,
    first_steps,
    host,
    main_context,
    main_grid,
    ordered,
)

TEMPLATE = Path(__file__).parent / "section.md.j2"
STEP_PASSES = (*PHASES, "train_step")
READABLE = {
    "context_length": "context length",
    "train_step": "train step",
    "warmup_steps": "warm-up steps",
    "phase": "passes",
}


def build(rows: pd.DataFrame, figures_dir: Path) -> str:
    """Write the section's Markdown from the rows of all its tables, and its figures as SVG into a folder."""
    rows = ordered(eager_and_compiled(rows), READING_ORDER)
    facts = {"missing": _missing(rows), "measured": not ok(host(main_grid(rows))).empty}
    if facts["measured"]:
        facts |= _facts(rows, figures_dir)
    return render(TEMPLATE, facts)


def _facts(rows: pd.DataFrame, figures_dir: Path) -> dict:
    context_length = main_context(host(main_grid(rows)))
    pairs = baselines.beside_ours(rows, context_length)
    return {
        "setting": findings.setting(rows),
        "context_length": context_length,
        "median_errors": findings.median_errors(rows),
        "passes": findings.passes(rows, context_length),
        "variability": findings.variability(rows),
        "growth": findings.growth(rows),
        "throughput": findings.throughput(rows, context_length),
        "warmup": findings.warmup(rows),
        "gains": findings.precision_gains(rows, context_length),
        "compilation": compile_findings.compilation(rows),
        "clocks": findings.clocks(rows),
        "figures": draw_all(rows, context_length, figures_dir),
        "tables": _tables(rows, context_length),
        "others": [baselines.summary_table(pairs), *baselines.full_tables(pairs)] if len(pairs) else [],
    }


def _tables(rows: pd.DataFrame, context_length: int) -> dict[str, str]:
    return {
        "main": _main_table(rows, context_length),
        "all_lengths": _tables_of_all_lengths(rows),
        "throughput": _throughput_table(rows, context_length),
        **_warmup_tables(rows),
        **_gain_tables(rows, context_length),
        **_compile_tables(rows),
    }


def _readable(table: pd.DataFrame) -> pd.DataFrame:
    return table.rename(columns=READABLE)


def _measured_precisions(rows: pd.DataFrame) -> pd.DataFrame:
    """Leave out precisions of which nothing was measured: the section says so once, not in every cell."""
    return rows[rows["precision"].isin(ok(rows)["precision"])]


def _main_table(rows: pd.DataFrame, context_length: int) -> str:
    grid = at_context(_measured_precisions(host(main_grid(rows))), context_length)
    keys = ["precision", "size"]
    times = pivot(grid, keys, "phase", mean_std_cells(grid))
    steps = grid[grid["phase"] == "train_step"]
    medians = steps[keys].assign(median=number_cells(steps, "median_ms"))
    table = times.merge(medians, on=keys).rename(columns={"median": "train step, median"})
    return markdown(_readable(table))


def _tables_of_all_lengths(rows: pd.DataFrame) -> str:
    grid = _measured_precisions(host(main_grid(rows)))
    texts = []
    for precision, group in grid.groupby("precision", sort=False):
        for words, cells in (("mean ± standard deviation", mean_std_cells), ("median and quartiles", median_cells)):
            table = pivot(group, ["size", "context_length"], "phase", cells(group))
            texts.append(fold(f"{precision}: every context length, {words}, in ms", markdown(_readable(table))))
    return Markdown("\n").join(texts)


def _throughput_table(rows: pd.DataFrame, context_length: int) -> str:
    steps = at_context(_measured_precisions(host(main_grid(rows))), context_length)
    steps = steps[steps["phase"] == "train_step"]
    steps = steps.assign(peak_gb=steps["peak_bytes"] / 1e9)
    columns = {
        "tokens/s": "tokens_per_s",
        "TFLOP/s": "model_tflops_per_s",
        "MFU (%)": "mfu_pct",
        "peak memory (GB)": "peak_gb",
    }
    known = {title: column for title, column in columns.items() if steps[column].notna().any()}
    table = steps[["precision", "size"]].assign(
        **{title: number_cells(steps, column) for title, column in known.items()}
    )
    summary = f"Throughput of a train step at context length {context_length}"
    return markdown_folded_if_long(table, summary)


def _warmup_tables(rows: pd.DataFrame) -> dict[str, str]:
    steps = first_steps(rows)
    if steps.empty:
        return {}
    groups = steps.groupby(["size", "warmup_steps"], sort=False)
    cells = groups.agg(mean=("step_ms", "mean"), std=("step_ms", "std"), first=("relative", "first")).reset_index()
    times = pd.Series([mean_std(*pair) for pair in zip(cells["mean"], cells["std"], strict=True)])
    firsts = cells["first"].map(lambda value: f"{significant(value)}×")
    names = cells["warmup_steps"].map(lambda count: f"{count} warm-up")
    cells = cells.assign(names=names)
    return {
        "warmup_means": markdown(pivot(cells, ["size"], "names", times)),
        "warmup_firsts": markdown(pivot(cells, ["size"], "names", firsts)),
    }


def _ratio_cells(gains: pd.DataFrame) -> pd.Series:
    """Write ratio and range, `1.41 (1.39–1.44)`, or the outcome, for every row."""
    numbers = zip(gains["median_ratio"], gains["q1_ratio"], gains["q3_ratio"], strict=True)
    cells = [f"{significant(middle)} ({significant(low)}–{significant(high)})" for middle, low, high in numbers]
    return with_outcomes(pd.Series(cells, index=gains.index, dtype=object), gains)


def _gain_tables(rows: pd.DataFrame, context_length: int) -> dict[str, str]:
    gains = findings.gains_over_fp32(rows)
    if gains.empty:
        return {}
    here = at_context(gains, context_length)
    here = here.assign(names=here["phase"].replace(READABLE))
    steps = gains[gains["phase"] == "train_step"]
    texts = {"gains": markdown(pivot(here, ["precision", "size"], "names", _ratio_cells(here)))}
    if steps["context_length"].nunique() > 1:
        table = markdown(_readable(pivot(steps, ["size", "context_length"], "precision", _ratio_cells(steps))))
        texts["gains_all_lengths"] = fold("Train step: every context length", table)
    return texts


def _compile_tables(rows: pd.DataFrame) -> dict[str, str]:
    gains = compile_findings.compile_gains(rows)
    if ok(gains).empty:
        return {}
    keys = ["precision", "context_length", "size"]
    gains = ordered(gains, [*keys, "phase"])
    ratios = pivot(gains, keys, "phase", _ratio_cells(gains))
    longest = host(rows)[host(rows)["warmup_steps"] == rows["warmup_steps"].max()]
    both = longest.merge(gains[keys].drop_duplicates(), on=keys)
    both = both[both["phase"].isin(STEP_PASSES)]
    times = pivot(both, [*keys, "mode"], "phase", mean_std_cells(both))
    texts = {
        "compile_ratios": markdown(_readable(ratios)),
        "compile_times": fold("Eager and compiled, mean ± standard deviation, in ms", markdown(_readable(times))),
    }
    back = compile_findings.payback(rows)
    if not back.empty:
        texts["payback"] = markdown(_payback_table(ordered(back, keys)))
    return texts


def _payback_table(back: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "precision": back["precision"],
            "context length": back["context_length"],
            "size": back["size"],
            "first compiled step (s)": (back["compile_ms"] / 1e3).map(significant),
            "saved a step (ms)": back["saved_ms"].map(significant),
            "paid back after (steps)": back["steps"].map(lambda steps: f"{steps:,.0f}" if steps > 0 else "never"),
        }
    )


def _missing(rows: pd.DataFrame) -> str:
    """List the cells that are not ok, those alike but for the context length in one line; empty if none."""
    failed = findings.outcomes(rows)
    if failed.empty:
        return ""
    whole = failed["phase"].map(lambda names: set(STEP_PASSES) <= set(names))
    failed["status"] = failed["status"].map(OUTCOME_WORDS)
    failed["phase"] = failed["phase"].map(", ".join).str.replace("_", " ").mask(whole, "all")
    keys = ["precision", "size", "mode", "warmup_steps", "phase", "status", "reason"]
    lengths = failed.groupby(keys, sort=False)["context_length"]
    table = lengths.agg(lambda found: ", ".join(map(str, found))).reset_index()
    table = table[["precision", "size", "mode", "context_length", "warmup_steps", "phase", "status", "reason"]]
    return markdown_folded_if_long(_readable(table), f"The {len(table)} lines of what is missing or unstable")
