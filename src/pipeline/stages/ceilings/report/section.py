"""The ceilings section: what this machine reaches at most, beside what its data sheet promises."""

from collections.abc import Callable

import pandas as pd

from pipeline.cells.rows import WITH_FIGURES
from pipeline.report.outcomes import nothing_measured
from pipeline.report.page_parts import Figure, Section, Table
from pipeline.report.section import count, data_size, listing, ms, percent
from pipeline.report.table_rows import known, ok
from pipeline.report.tables import significant, with_outcomes
from pipeline.stages.ceilings.report import figures
from pipeline.stages.ceilings.report.selection import (
    BANDWIDTHS,
    NEAR,
    alike,
    bandwidths,
    best_products,
    best_trained,
    capped,
    promised,
    share,
)

TITLE = "What can this machine do at most?"
METHOD = (
    "One call at a time, medians: on a GPU device time with the L2 cache flushed, else the host clock. Products are of"
    " normal numbers; a copy within a memory counts reads and writes."
)


def build(rows: pd.DataFrame) -> Section:
    """Return the section of the ceilings stage, from all its rows."""
    if ok(rows).empty:
        return Section(TITLE, "", nothing_measured(rows))
    drawing = figures.rates(rows)
    shown = [] if drawing is None else [Figure("rates", _figure_title(rows), drawing)]
    return Section(TITLE, "", _answer(rows), parts=[*shown, *_table(rows)], method=METHOD)


def _answer(rows: pd.DataFrame) -> str:
    """Say what products and copies reach, or whatever else was measured, and what an operator costs the host."""
    product, words = best_trained(rows), []
    if product is not None:
        words.append(f"{product['dtype']} products reach {_with_share(product, 'tflops_per_s', flop_rate)}")
    for _, row in ok(bandwidths(rows)).head(1).iterrows():
        words.append(f"{BANDWIDTHS[row['kind']]} {_with_share(row, 'gb_per_s', byte_rate)}")
    sentences = [f"{', '.join(words)}." if words else "No rate was measured."]
    slowed = None if product is None else capped(rows, product)
    if slowed is not None:
        sentences.append(
            f"With matrices of {count(slowed['side'])} a power limit lowers the clock from "
            f"{count(product['mean_sm_clock_mhz'])} to {count(slowed['mean_sm_clock_mhz'])} MHz and the rate to "
            f"{flop_rate(slowed['tflops_per_s'])}."
        )
    costs = {row["kind"]: ms(row["median_ms"]) for _, row in known(ok(rows), "kind").iterrows()}
    # A kernel that is shorter than that leaves the GPU waiting.
    if "operator" in costs:
        sentences.append(f"One eager operator costs the host {costs['operator']}.")
    if "launch" in costs:
        sentences.append(f"Alone it takes {costs['launch']} from the call until the GPU has done it.")
    return " ".join(sentences)


def _with_share(row: pd.Series, quantity: str, write: Callable[[float], str]) -> str:
    of_datasheet = share(row, quantity)
    return write(row[quantity]) + ("" if of_datasheet is None else f" ({percent(of_datasheet)} of the data sheet)")


def _figure_title(rows: pd.DataFrame) -> str:
    product = best_trained(rows)
    if product is None:
        return "Bandwidths"
    found, near = alike(rows, product), f"come within {percent(1 - NEAR)} of their best rate"
    sides = found.loc[found["share"] >= NEAR, "side"]
    slower = found[(found["side"] > sides.min()) & (found["share"] < NEAR)]
    if slower.empty:
        return f"{product['dtype']} products need matrices of {count(sides.min())} to {near}"
    others = listing(f"{percent(row['share'])} of it with {count(row['side'])}" for _, row in slower.iterrows())
    return f"{product['dtype']} products {near} with matrices of {listing(sides.map(count))}, and reach {others}"


def _table(rows: pd.DataFrame) -> list[Table]:
    """Make a table of one row per ceiling: what was reached, with what, and what the data sheet promises."""
    rows = rows[rows["status"] != "skipped"]
    best, moved = best_products(rows), bandwidths(rows)
    lines = [
        *(_line(row, f"{row['dtype']} product", "tflops_per_s", flop_rate) for _, row in best.iterrows()),
        *(_line(row, BANDWIDTHS[row["kind"]], "gb_per_s", byte_rate) for _, row in moved.iterrows()),
    ]
    if not lines:
        return []
    cells = pd.DataFrame(lines)
    cells["measured"] = with_outcomes(cells["measured"], pd.concat([best, moved], ignore_index=True))
    return [Table("The highest rate of each kind:", cells.loc[:, (cells != "").any()])]


def _line(row: pd.Series, ceiling: str, quantity: str, write: Callable[[float], str]) -> dict[str, str]:
    if row["status"] not in WITH_FIGURES:
        return {"ceiling": ceiling, **dict.fromkeys(("measured", "data sheet", "share", "with"), "")}
    rate, of_datasheet = promised(row, quantity), share(row, quantity)
    return {
        "ceiling": ceiling,
        "measured": write(row[quantity]),
        "data sheet": "" if rate is None else write(rate),
        "share": "" if of_datasheet is None else percent(of_datasheet),
        "with": f"matrices of {count(row['side'])}" if quantity == "tflops_per_s" else data_size(row["tensor_bytes"]),
    }


def flop_rate(tflops_per_s: float) -> str:
    """Write a rate of floating-point operations: 742 TFLOP/s, or 98.2 GFLOP/s below one."""
    if tflops_per_s < 1:
        return f"{significant(1e3 * tflops_per_s)} GFLOP/s"
    return f"{significant(tflops_per_s)} TFLOP/s"


def byte_rate(gb_per_s: float) -> str:
    """Write a bandwidth: 4.20 TB/s, or 55.1 GB/s below a thousand."""
    return f"{significant(gb_per_s / 1e3)} TB/s" if gb_per_s >= 1000 else f"{significant(gb_per_s)} GB/s"
