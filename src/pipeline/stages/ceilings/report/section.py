"""The ceilings section: what this machine reaches at most, beside what its data sheet promises."""

from collections.abc import Callable

import pandas as pd

from pipeline.cells.rows import WITH_FIGURES
from pipeline.report.markup import Markdown
from pipeline.report.outcomes import nothing_measured
from pipeline.report.page_parts import Figure, Section, Table, say
from pipeline.report.section import count, data_size, ms, percent
from pipeline.report.table_rows import known, ok
from pipeline.report.tables import significant, with_outcomes
from pipeline.stages.ceilings.report import figures
from pipeline.stages.ceilings.report.selection import (
    BANDWIDTHS,
    NEAR,
    bandwidths,
    best_products,
    best_trained,
    least_side,
    promised,
    share,
)

TITLE = "What can this machine do at most?"
METHOD = Markdown(
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


def _answer(rows: pd.DataFrame) -> Markdown:
    """Say what products and copies reach, or whatever else was measured."""
    product, moved = best_trained(rows), ok(bandwidths(rows))
    words = []
    if product is not None:
        reached = _with_share(flop_rate(product["tflops_per_s"]), share(product, "tflops_per_s"))
        words.append(say("{dtype} products reach {reached}", dtype=product["dtype"], reached=reached))
    for _, row in moved.head(1).iterrows():
        reached = _with_share(byte_rate(row["gb_per_s"]), share(row, "gb_per_s"))
        words.append(say("{what} {reached}", what=BANDWIDTHS[row["kind"]], reached=reached))
    rates = Markdown(", ").join(words) + "." if words else Markdown("No rate was measured.")
    return Markdown(" ").join([rates, *_host_costs(rows)])


def _figure_title(rows: pd.DataFrame) -> Markdown:
    product = best_trained(rows)
    if product is None:
        return Markdown("Bandwidths")
    return say(
        "{dtype} products need matrices of {side} to come within {within} of their best rate",
        dtype=product["dtype"],
        side=count(least_side(rows, product)),
        within=percent(1 - NEAR),
    )


def _with_share(rate: str, of_datasheet: float | None) -> str:
    return rate if of_datasheet is None else f"{rate} ({percent(of_datasheet)} of the data sheet)"


def _host_costs(rows: pd.DataFrame) -> list[Markdown]:
    """Say what an operator costs the host: a kernel that is shorter leaves the GPU waiting."""
    costs = {row["kind"]: ms(row["median_ms"]) for _, row in known(ok(rows), "kind").iterrows()}
    found = []
    if "operator" in costs:
        found.append(say("One eager operator costs the host {time}.", time=costs["operator"]))
    if "launch" in costs:
        found.append(say("A lone one takes {time} until the GPU has done it.", time=costs["launch"]))
    return [Markdown(" ").join(found)] if found else []


def _table(rows: pd.DataFrame) -> list[Table]:
    """Make a table of a row a ceiling: what was reached, with what, and what the data sheet promises."""
    rows = rows[rows["status"] != "skipped"]
    best, moved = best_products(rows), bandwidths(rows)
    lines = [
        *(_product_line(row) for _, row in best.iterrows()),
        *(_bandwidth_line(row) for _, row in moved.iterrows()),
    ]
    if not lines:
        return []
    cells = pd.DataFrame(lines)
    cells["measured"] = with_outcomes(cells["measured"], pd.concat([best, moved], ignore_index=True))
    return [Table(Markdown("The highest rate of each kind:"), cells.loc[:, (cells != "").any()])]


def _product_line(row: pd.Series) -> dict[str, str]:
    used = f"matrices of {count(row['side'])}" if row["status"] in WITH_FIGURES else ""
    return {"ceiling": f"{row['dtype']} product", **_rates(row, "tflops_per_s", flop_rate), "with": used}


def _bandwidth_line(row: pd.Series) -> dict[str, str]:
    used = data_size(row["tensor_bytes"]) if row["status"] in WITH_FIGURES else ""
    return {"ceiling": BANDWIDTHS[row["kind"]], **_rates(row, "gb_per_s", byte_rate), "with": used}


def _rates(row: pd.Series, quantity: str, write: Callable[[float], str]) -> dict[str, str]:
    if row["status"] not in WITH_FIGURES:
        return dict.fromkeys(("measured", "data sheet", "share"), "")
    rate, of_datasheet = promised(row, quantity), share(row, quantity)
    return {
        "measured": write(row[quantity]),
        "data sheet": "" if rate is None else write(rate),
        "share": "" if of_datasheet is None else percent(of_datasheet),
    }


def flop_rate(tflops_per_s: float) -> str:
    """Write a rate of floating-point operations: 742 TFLOP/s, or 98.2 GFLOP/s below one."""
    if tflops_per_s < 1:
        return f"{significant(1e3 * tflops_per_s)} GFLOP/s"
    return f"{significant(tflops_per_s)} TFLOP/s"


def byte_rate(gb_per_s: float) -> str:
    """Write a bandwidth: 4.20 TB/s, or 55.1 GB/s below a thousand."""
    return f"{significant(gb_per_s / 1e3)} TB/s" if gb_per_s >= 1000 else f"{significant(gb_per_s)} GB/s"
