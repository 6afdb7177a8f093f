"""The ceilings section: what this machine reaches at most, beside what its data sheet promises."""

import pandas as pd

from pipeline.cells.rows import WITH_FIGURES
from pipeline.report.outcomes import nothing_measured
from pipeline.report.page_parts import Figure, Section, Table
from pipeline.report.section import count, data_size, listing, ms, percent
from pipeline.report.table_rows import known, ok
from pipeline.report.tables import with_outcomes
from pipeline.stages.ceilings.report import figures
from pipeline.stages.ceilings.report.selection import (
    BANDWIDTHS,
    BYTE_RATE,
    FLOP_RATE,
    NEAR,
    alike,
    bandwidths,
    best_trained,
    capped,
    highest,
    promised,
    share,
    written,
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
        words.append(f"{product['dtype']} products reach {_with_share(product, FLOP_RATE)}")
    for _, row in ok(bandwidths(rows)).head(1).iterrows():
        words.append(f"{BANDWIDTHS[row['kind']]} {_with_share(row, BYTE_RATE)}")
    sentences = [f"{', '.join(words)}." if words else "No rate was measured."]
    if product is not None and (slowed := capped(rows, product)) is not None:
        sentences.append(
            f"With matrices of {count(slowed['side'])} a power limit lowers the clock from "
            f"{count(product['mean_sm_clock_mhz'])} to {count(slowed['mean_sm_clock_mhz'])} MHz and the rate to "
            f"{written(slowed[FLOP_RATE], FLOP_RATE)}."
        )
    costs = {row["kind"]: ms(row["median_ms"]) for _, row in known(ok(rows), "kind").iterrows()}
    # A kernel that is shorter than that leaves the GPU waiting.
    if "operator" in costs:
        sentences.append(f"One eager operator costs the host {costs['operator']}.")
    if "launch" in costs:
        sentences.append(f"On an idle GPU it takes {costs['launch']} from the call until it is done.")
    return " ".join(sentences)


def _with_share(row: pd.Series, quantity: str) -> str:
    of_datasheet = share(row, quantity)
    return written(row[quantity], quantity) + (
        "" if of_datasheet is None else f" ({percent(of_datasheet)} of the data sheet)"
    )


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
    found = highest(rows)
    if found.empty:
        return []
    cells = pd.DataFrame([_line(row) for _, row in found.iterrows()])
    cells["measured"] = with_outcomes(cells["measured"], found)
    return [Table("The highest rate of each kind:", cells.loc[:, (cells != "").any()])]


def _line(row: pd.Series) -> dict[str, str]:
    if row["status"] not in WITH_FIGURES:
        return {"ceiling": row["ceiling"], **dict.fromkeys(("measured", "data sheet", "share", "with"), "")}
    quantity = row["quantity"]
    rate, of_datasheet = promised(row, quantity), share(row, quantity)
    return {
        "ceiling": row["ceiling"],
        "measured": written(row["rate"], quantity),
        "data sheet": "" if rate is None else written(rate, quantity),
        "share": "" if of_datasheet is None else percent(of_datasheet),
        "with": f"matrices of {count(row['side'])}" if quantity == FLOP_RATE else data_size(row["tensor_bytes"]),
    }
