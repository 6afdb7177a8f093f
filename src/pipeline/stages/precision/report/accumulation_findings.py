"""What the accumulation tables say of running sums: tables and the facts of the section's prose."""

import pandas as pd

from pipeline.report.section import percent
from pipeline.report.tables import markdown, markdown_folded_if_long
from pipeline.stages.precision import roundoff
from pipeline.stages.precision.cases import ASSIGNED_SUMS
from pipeline.stages.precision.report import selection
from pipeline.stages.precision.report.selection import brief, plain, shown
from pipeline.stages.precision.roundoff import FORMATS

KEYS = ["accumulator", "addend_dtype", "cast", "steps", "addend"]
PREDICTED = {
    "value": ("result", "predicted_result"),
    "stall": ("stall", "predicted_stall"),
    "step of the stall": ("stalled_at_step", "predicted_stalled_at_step"),
    "error of the addend": ("addend_error", "predicted_addend_error"),
}
CASTS = {"none": "", "implicit": "", "explicit": ", cast first"}


def facts(rows: pd.DataFrame) -> dict:
    """Return tables and findings on running sums; empty where none was measured."""
    sums = shown(rows, "accumulation")
    if sums.empty:
        return {}
    assigned = _assigned(sums)
    return {
        "device": sums["device"].iloc[0],
        "device_name": sums["device_name"].iloc[0],
        "assigned": values_table(assigned),
        "further": values_table(sums.drop(assigned.index)),
        "errors": errors_table(sums),
        "stalls": stalls_table(sums),
        "predictions": predictions(sums),
        "answers": [answer(case) for case in assigned.to_dict("records")],
        "explicit_same": explicit_is_implicit(assigned),
        "stalled": stalled(sums),
        "narrow_addends": narrow_addends(sums),
        "wide_addends": wide_addends(sums),
        "course": course(assigned),
        "devices_beside": devices_beside(rows),
    }


def label(case: dict) -> str:
    """Name the formats of a sum: `fp32 + fp16`, accumulator first."""
    return f"{case['accumulator']} + {case['addend_dtype']}{CASTS[case['cast']]}"


def title(case: dict) -> str:
    """Name a sum in full: `fp16 + fp32, 1,000 × 0.01`."""
    return f"{label(case)}, {sum_of(case)}"


def sum_of(case: dict) -> str:
    """Name the steps of a sum: `1,000 × 0.01`."""
    return f"{case['steps']:,.0f} × {case['addend']:g}"


def _assigned(sums: pd.DataFrame) -> pd.DataFrame:
    """Keep the assignment's cases, in its order."""
    wanted = pd.DataFrame([case.keys() for case in ASSIGNED_SUMS])
    found = sums.reset_index().merge(wanted, on=KEYS).set_index("index")
    order = {tuple(case.keys().values()): place for place, case in enumerate(ASSIGNED_SUMS)}
    return found.loc[sorted(found.index, key=lambda place: order[tuple(found.loc[place, KEYS])])]


def _formats(sums: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "accumulator": sums["accumulator"],
            "addend": sums["addend_dtype"] + sums["cast"].map(CASTS),
            "sum of": sums.apply(sum_of, axis=1),
        }
    )


def values_table(sums: pd.DataFrame) -> str:
    """Write value, predicted value and errors of each sum."""
    return markdown(
        _formats(sums).assign(
            **{
                "result": sums["result"].map(plain),
                "predicted": sums["predicted_result"].map(plain),
                "error": sums["error"].map(brief),
                "relative error": sums["rel_error"].map(percent),
            }
        )
    )


def errors_table(sums: pd.DataFrame) -> str:
    """Write where each error comes from: the rounded addend, measured and predicted, and the rounded sums."""
    return markdown(
        _formats(sums).assign(
            **{
                "error of the addend": sums["addend_error"].map(brief),
                "predicted": sums["predicted_addend_error"].map(brief),
                "rounding of the sums": sums["rounding_error"].map(brief),
                "at most": sums["rounding_error_bound"].map(brief),
            }
        )
    )


def stalls_table(sums: pd.DataFrame) -> str:
    """Write where each sum stalls, measured and predicted, and after which step it did in the run."""
    sums = sums[sums["cast"] != "explicit"]
    return markdown(
        _formats(sums).assign(
            **{
                "predicted stall": sums["predicted_stall"].map(plain),
                "measured": sums["stall"].map(plain).where(sums["stall"].notna(), "none"),
                "approached from": sums["stall_approached_from"].map(plain),
                "stalled at step": _steps(sums["stalled_at_step"]),
                "predicted": _steps(sums["predicted_stalled_at_step"]),
            }
        )
    )


def _steps(steps: pd.Series) -> pd.Series:
    return pd.Series([f"{step:,.0f}" if step > 0 else "never" for step in steps], index=steps.index)


def predictions(sums: pd.DataFrame) -> list[dict]:
    """Count, for each predicted quantity, the cases that came out as predicted, and name the others."""
    found = []
    for name, (measured, predicted) in PREDICTED.items():
        exact = (sums[measured] == sums[predicted]) | (sums[measured].isna() & sums[predicted].isna())
        found.append({"name": name, "exact": int(exact.sum()), "of": len(sums), "wrong": _titles(sums[~exact])})
    return found


def _titles(sums: pd.DataFrame) -> list[str]:
    return [title(case) for case in sums.to_dict("records")]


def answer(case: dict) -> dict:
    """Split the error of one sum: what the addend and what rounding the sums has of it, and which is the larger."""
    addend, rounding = abs(case["addend_error"]), abs(case["rounding_error"])
    return {
        "label": label(case),
        "result": plain(case["result"]),
        "error": brief(case["error"]),
        "addend_error": brief(case["addend_error"]),
        "rounding_error": brief(case["rounding_error"]),
        "mainly": "addend" if addend > rounding else "rounding",
        "exact_sums": rounding == 0,
    }


def explicit_is_implicit(assigned: pd.DataFrame) -> bool | None:
    """Tell whether casting the addend first changes nothing; None where the two were not both measured."""
    by_cast = assigned[assigned["addend_dtype"] != assigned["accumulator"]].set_index("cast")["result"]
    if not {"implicit", "explicit"} <= set(by_cast.index):
        return None
    return bool(by_cast["implicit"] == by_cast["explicit"])


def stalled(sums: pd.DataFrame) -> list[dict]:
    """List the sums that stopped growing before their last step."""
    return [
        {
            "title": title(case),
            "addend": plain(case["addend"]),
            "result": plain(case["result"]),
            "expected": plain(case["expected"]),
            "step": case["stalled_at_step"],
            "steps": case["steps"],
            "half_spacing": brief(FORMATS[case["accumulator"]].spacing(case["result"]) / 2),
        }
        for case in sums[sums["stalled_at_step"].notna()].to_dict("records")
    ]


def narrow_addends(sums: pd.DataFrame) -> dict:
    """Say of the fp32 sums of narrower addends how many are free of rounding, and name those; empty without any."""
    narrow = sums[(sums["accumulator"] == "fp32") & (sums["addend_dtype"] != "fp32")]
    exact = narrow[narrow["rounding_error"] == 0]
    return {"exact": len(exact), "of": len(narrow)} if len(narrow) else {}


def wide_addends(sums: pd.DataFrame) -> list[dict]:
    """Compare each sum of an addend wider than its accumulator with that of the addend in the accumulator's format."""
    wide = sums[(sums["accumulator"] != "fp32") & (sums["addend_dtype"] == "fp32")]
    own = sums[(sums["accumulator"] == sums["addend_dtype"])]
    both = wide.merge(own, on=["accumulator", "steps", "addend"], suffixes=("", "_own"))
    return [
        {"title": title(case), "result": plain(case["result"]), "own": plain(case["result_own"])}
        for case in both.to_dict("records")
    ]


def course(assigned: pd.DataFrame) -> dict:
    """Follow the least accurate of the assignment's sums through its binades, as unit roundoff predicts them."""
    worst = assigned.loc[assigned["rel_error"].idxmax()].to_dict()
    addend = FORMATS[worst["addend_dtype"]].rounded(worst["addend"])
    taken = roundoff.stretches(addend, int(worst["steps"]), FORMATS[worst["accumulator"]])
    table = pd.DataFrame(
        [
            {
                "sum from": plain(stretch.start),
                "to": plain(stretch.end),
                "spacing": brief(stretch.spacing),
                "addend / spacing": brief(addend / stretch.spacing),
                "each step adds": brief(stretch.step),
                "too much by": percent(stretch.step / addend - 1),
                "steps": f"{stretch.steps:,}",
            }
            for stretch in taken
        ]
    )
    summary = f"{label(worst)}: the {len(taken)} stretches of the sum"
    return {
        "label": label(worst),
        "table": markdown_folded_if_long(table, summary),
        "last_spacing": brief(taken[-1].spacing),
        "last_step": brief(taken[-1].step),
        "last_steps": taken[-1].steps,
        "last_from": plain(taken[-1].start),
        "addend": plain(addend),
    }


def devices_beside(rows: pd.DataFrame) -> dict:
    """Say which sums or stalls differ between the devices; empty where there is only one."""
    found = selection.devices_beside(rows, "accumulation", KEYS, ["result", "stall"])
    return found | {"titles": _titles(found["differ"])} if found else {}
