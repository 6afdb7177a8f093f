"""Running sums: what each data type of the accumulator and the addend makes of them."""

import pandas as pd

from pipeline.report.markup import Markdown
from pipeline.report.page_parts import Figure, Problem, Table, say
from pipeline.report.section import listing
from pipeline.stages.precision.cases import ASSIGNED_SUMS
from pipeline.stages.precision.report import figures
from pipeline.stages.precision.report.facts import brief, devices_with, figures_of, plain

KEYS = ["accumulator", "addend_dtype", "cast", "steps", "addend"]
PREDICTED = (("result", "predicted_result"), ("stall", "predicted_stall"))
CASTS = {"none": "", "implicit": "", "explicit": ", cast first"}


def assigned(sums: pd.DataFrame) -> pd.DataFrame:
    """Keep as many steps of as large an addend as the assignment asks for, of all data types."""
    return sums[(sums["steps"] == ASSIGNED_SUMS[0].steps) & (sums["addend"] == ASSIGNED_SUMS[0].addend)]


def of_one_dtype(sums: pd.DataFrame) -> pd.DataFrame:
    """Keep the sums whose accumulator and addend have one data type."""
    return sums[sums["accumulator"] == sums["addend_dtype"]]


def answer(sums: pd.DataFrame) -> Markdown:
    """Say what the assignment's sum comes to in each data type."""
    return say("{what} give {results}.", what=_sum_of(sums), results=_results(sums))


def _sum_of(sums: pd.DataFrame) -> str:
    row = sums.iloc[0]
    return f"{row['steps']:,.0f} additions of {row['addend']:g}"


def _results(sums: pd.DataFrame) -> str:
    return listing(
        f"{row['result']:g} in {row['accumulator']}{_stalled(row)}"
        for _, row in of_one_dtype(assigned(sums)).iterrows()
    )


def _stalled(row: pd.Series) -> str:
    return "" if pd.isna(row["stalled_at_step"]) else f" (it stalls at step {row['stalled_at_step']:,.0f})"


def figure(sums: pd.DataFrame) -> Figure:
    """Show the running sums of one data type each."""
    title = say("{what}: the sums end at {results}", what=_sum_of(sums), results=_results(sums))
    return Figure("accumulation", title, figures.accumulation(of_one_dtype(sums)))


def table(sums: pd.DataFrame) -> Table:
    """Write the assignment's sums in all data types, with the two sources of their errors."""
    here = assigned(sums)
    cells = pd.DataFrame(
        {
            "accumulator": here["accumulator"],
            "addend": here["addend_dtype"] + here["cast"].map(CASTS),
            "sum": here["result"].map(plain),
            "error": here["error"].map(brief),
            "error from the addend": here["addend_error"].map(brief),
            "error from the sums": here["rounding_error"].map(brief),
            "stalls at a sum of": here["stall"].map(plain).where(here["stall"].notna(), "–"),
        }
    )
    return Table(say("{what}, on {device}:", what=_sum_of(sums), device=sums["device"].iloc[0]), cells)


def predictions(rows: pd.DataFrame, sums: pd.DataFrame) -> Markdown:
    """Say how many sums and stalls came out as unit roundoff predicts, and in how many the devices agree."""
    right = [int((sums[seen] == sums[predicted]).sum()) for seen, predicted in PREDICTED]
    first = say(
        "Unit roundoff alone predicts {sums} of {of} sums and {stalls} of {of} stalls to the last bit.",
        sums=right[0],
        stalls=right[1],
        of=len(sums),
    )
    devices = devices_with(rows, "accumulation")
    if len(devices) < 2:
        return first
    measured = figures_of(rows, "accumulation")
    both = [measured[measured["device"] == device].set_index(KEYS)["result"] for device in devices]
    agree = int((both[0] == both[1].reindex(both[0].index)).sum())
    second = say("{devices} agree in {n} sums.", devices=listing(devices), n=agree)
    return Markdown(" ").join([first, second])


def problem(sums: pd.DataFrame) -> Problem:
    """Answer the assignment's problem: its four sums, and what each error mostly comes of."""
    wanted = pd.DataFrame([case.keys() for case in ASSIGNED_SUMS])
    four = wanted.merge(sums, on=KEYS)
    results = listing(f"{plain(row['result'])} ({label(row)})" for _, row in four.iterrows())
    by_addend = four[four["addend_error"].abs() > four["rounding_error"].abs()]
    by_sums = four.drop(by_addend.index)
    causes = [
        f"rounding {what} in {listing(group.apply(label, axis=1))}"
        for what, group in (("the addend", by_addend), ("the sums", by_sums))
        if len(group)
    ]
    return Problem(
        "mixed_precision_accumulation",
        say("The sums end at {results}. Errors come mostly of {causes}.", results=results, causes=listing(causes)),
    )


def label(case: pd.Series) -> str:
    """Name the data types of a sum, the accumulator's first: `fp32 + fp16`."""
    return f"{case['accumulator']} + {case['addend_dtype']}{CASTS[case['cast']]}"
