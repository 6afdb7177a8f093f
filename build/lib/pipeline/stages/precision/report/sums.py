"""Running sums: what each data type of the accumulator and the addend makes of them."""

import pandas as pd

from pipeline.report.figures import BLACK, footnote, new_figure, shared_legend, style_for
from pipeline.report.page_parts import Figure, Problem, Table
from pipeline.report.section import listing
from pipeline.stages.precision.cases import ASSIGNED_SUMS
from pipeline.stages.precision.report.selection import devices_with, figures_of

KEYS = ["accumulator", "addend_dtype", "cast", "steps", "addend"]
CASTS = {"none": "", "implicit": "", "explicit": ", cast first"}
MARKER_EVERY = 25


def of_one_dtype(sums: pd.DataFrame) -> pd.DataFrame:
    """Keep the sums whose accumulator and addend have one data type."""
    return sums[sums["accumulator"] == sums["addend_dtype"]]


def assigned(sums: pd.DataFrame) -> pd.DataFrame:
    """Keep as many steps of as large an addend as the assignment asks for, of all data types."""
    return sums[(sums["steps"] == ASSIGNED_SUMS[0].steps) & (sums["addend"] == ASSIGNED_SUMS[0].addend)]


def sum_of(sums: pd.DataFrame) -> str:
    """Name what is added: `1,000 additions of 0.01`."""
    return f"{sums['steps'].iloc[0]:,.0f} additions of {sums['addend'].iloc[0]:g}"


def results(sums: pd.DataFrame) -> str:
    """Say what the assignment's sum comes to in each data type."""
    return listing(
        f"{case['result']:g} in {case['accumulator']}"
        + ("" if pd.isna(case["stalled_at_step"]) else f" (it stalls at step {case['stalled_at_step']:,.0f})")
        for case in of_one_dtype(assigned(sums)).to_dict("records")
    )


def figure(sums: pd.DataFrame) -> Figure:
    """Draw running sums over the steps, one panel per number of steps, one line per data type."""
    kinds = of_one_dtype(sums).groupby(["steps", "addend"], sort=False)
    drawing, panels = new_figure(1, len(kinds), panel_height_in=3.2)
    for axes, ((steps, addend), group) in zip(panels[0], kinds, strict=True):
        axes.plot([0, steps], [0, steps * addend], color=BLACK, linewidth=0.8, linestyle=":", label="exact")
        for case in group.to_dict("records"):
            look = style_for(case["accumulator"]) | {"label": case["accumulator"], "markevery": MARKER_EVERY}
            axes.plot(case["curve_steps"], case["curve_sums"], **look)
        axes.set_title(f"{steps:,.0f} × {addend:g}")
        axes.set_xlabel("step")
    panels[0, 0].set_ylabel("running sum")
    shared_legend(drawing)
    footnote(drawing, str(sums["device_name"].iloc[0]), f"torch {sums['torch'].iloc[0]}")
    return Figure("accumulation", f"{sum_of(sums)}: the sums end at {results(sums)}", drawing)


def table(sums: pd.DataFrame) -> Table:
    """Write the assignment's sums in all data types, with the two sources of their errors."""
    here = assigned(sums)
    errors = {"error": "error", "error from the addend": "addend_error", "error from the sums": "rounding_error"}
    cells = {
        "accumulator": here["accumulator"],
        "addend": here["addend_dtype"] + here["cast"].map(CASTS),
        "sum": here["result"].map("{:.10g}".format),
        **{title: here[column].map("{:.3g}".format) for title, column in errors.items()},
        "stalls at a sum of": here["stall"].map("{:.10g}".format).where(here["stall"].notna(), "–"),
    }
    return Table(f"{sum_of(sums)}, on {sums['device'].iloc[0]}:", pd.DataFrame(cells))


def predictions(rows: pd.DataFrame, sums: pd.DataFrame) -> str:
    """Say how many sums and stalls came out as unit roundoff predicts, and in how many the devices agree."""
    right = (sums["result"] == sums["predicted_result"]).sum()
    stalls = (sums["stall"] == sums["predicted_stall"]).sum()
    total = len(sums)
    first = f"Unit roundoff alone predicts {right} of {total} sums and {stalls} of {total} stalls to the last bit."
    devices, measured = devices_with(rows, "accumulation"), figures_of(rows, "accumulation")
    if len(devices) < 2:
        return first
    own, other = (measured[measured["device"] == device].set_index(KEYS)["result"] for device in devices)
    return f"{first} {listing(devices)} agree in {(own == other.reindex(own.index)).sum()} of {len(own)} sums."


def problem(sums: pd.DataFrame) -> Problem:
    """Answer the assignment's problem: its four sums, and what each error mostly comes of."""
    four = pd.DataFrame([case.keys() for case in ASSIGNED_SUMS]).merge(sums, on=KEYS)
    four["label"] = four["accumulator"] + " + " + four["addend_dtype"] + four["cast"].map(CASTS)
    by_addend = four["addend_error"].abs() > four["rounding_error"].abs()
    causes = [
        f"rounding {what} in {listing(labels)}"
        for what, labels in (("the addend", four.loc[by_addend, "label"]), ("the sums", four.loc[~by_addend, "label"]))
        if len(labels)
    ]
    ends = listing(f"{result:.10g} ({label})" for result, label in zip(four["result"], four["label"], strict=True))
    words = f"The sums end at {ends}. Errors come mostly from {listing(causes)}."
    return Problem("mixed_precision_accumulation", words)
