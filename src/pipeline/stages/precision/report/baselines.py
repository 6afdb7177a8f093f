"""Others' sums and data types beside ours, case by case."""

import pandas as pd

from pipeline.report import published
from pipeline.report.tables import markdown
from pipeline.stages.precision.report import accumulation_findings, autocast_findings
from pipeline.stages.precision.report.selection import devices_with, plain, shown

FORMATS = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
# What they call by another name than ours, with the detail of ours that is meant; "" is every detail.
COMPONENTS = {"logits_outside_model": ("logits", "")}


def sum_facts(rows: pd.DataFrame) -> dict:
    """Compare others' running sums with ours: how many agree to the digits printed, and a table; empty without any."""
    ours = shown(rows, "accumulation")
    theirs = published.load("accumulation")
    theirs = theirs.assign(
        accumulator=theirs["accumulator_dtype"].map(FORMATS), addend_dtype=theirs["addend_dtype"].map(FORMATS)
    )
    columns = [*accumulation_findings.KEYS, "write_up", "note", "result"]
    if ours.empty:
        return {}
    both = ours[[*accumulation_findings.KEYS, "result"]].merge(
        theirs[columns], on=accumulation_findings.KEYS, suffixes=("", "_theirs")
    )
    if both.empty:
        return {}
    both["agree"] = [agree(*pair) for pair in zip(both["result"], both["result_theirs"], strict=True)]
    return {
        "agree": int(both["agree"].sum()),
        "of": len(both),
        "write_ups": both["write_up"].nunique(),
        "table": _sums_table(both),
        "doubts": published.doubts_list(both[~both["note"].fillna("").str.startswith("printed with")]),
    }


def agree(ours: float, theirs: float) -> bool:
    """Tell whether two figures agree to the digits that the second is printed with."""
    decimals = len(repr(float(theirs)).partition(".")[2])
    return abs(ours - theirs) <= 0.5 * 10.0**-decimals


def _sums_table(both: pd.DataFrame) -> str:
    groups = both.groupby([*accumulation_findings.KEYS, "result"], sort=False)
    lines = []
    for key, group in groups:
        case = dict(zip([*accumulation_findings.KEYS, "result"], key, strict=True))
        printed = group.groupby("result_theirs", sort=False)["write_up"].agg(list)
        lines.append(
            {
                "formats": accumulation_findings.label(case),
                "sum of": accumulation_findings.sum_of(case),
                "ours": plain(case["result"]),
                "theirs": "; ".join(f"{theirs!r} ({_sources(names)})" for theirs, names in printed.items()),
                "agree": "yes" if group["agree"].all() else "no",
            }
        )
    return markdown(pd.DataFrame(lines))


def _sources(write_ups: list[str]) -> str:
    """Shorten names of write-ups to their numbers: `write-ups 0, 2`."""
    numbers = sorted({name.split()[1] for name in write_ups})
    return f"write-up{'s' if len(numbers) > 1 else ''} {', '.join(numbers)}"


def dtype_facts(rows: pd.DataFrame) -> dict:
    """Compare the data types that others state with those observed here, by device; empty without any observed."""
    devices = devices_with(rows, "autocast")
    if not devices:
        return {}
    theirs = published.load("autocast_dtypes")
    pairs = pd.DataFrame([_pair(rows, line, device) for line in theirs.to_dict("records") for device in devices])
    return {
        "write_ups": pairs["write_up"].nunique(),
        "printed_by_a_run": _sources(list(theirs.loc[theirs["basis"].str.startswith("printed"), "write_up"])),
        "doubts": published.doubts_list(theirs),
        "devices": [_agreement(pairs[pairs["device"] == device], device) for device in devices],
        "disputed": _disputed(pairs),
    }


def _pair(rows: pd.DataFrame, line: dict, device: str) -> dict:
    """Put one statement of theirs beside every type of ours that it may mean: for a loss, those of all losses."""
    component, detail = COMPONENTS.get(line["component"], (line["component"], ""))
    if component.startswith("gradient "):
        component, detail = "gradients", component.removeprefix("gradient ")
    dtype = FORMATS[line["autocast_dtype"]]
    return {
        "write_up": line["write_up"],
        "device": device,
        "autocast_dtype": dtype,
        "component": component,
        "theirs": FORMATS[line["dtype"]],
        "ours": autocast_findings.of_component(rows, device, dtype, component, detail),
    }


def _agreement(pairs: pd.DataFrame, device: str) -> dict:
    """Count what agrees with a device, what agrees with one of its losses only, and name the rest."""
    exact = pairs.apply(lambda pair: {pair["theirs"]} == pair["ours"], axis=1)
    among = pairs.apply(lambda pair: pair["theirs"] in pair["ours"], axis=1)
    columns = ["component", "autocast_dtype", "theirs"]
    return {
        "device": device,
        "of": len(pairs),
        "exact": int(exact.sum()),
        "one_of": int((among & ~exact).sum()),
        "differ": [
            {
                "component": autocast_findings.COMPONENTS[component],
                "autocast_dtype": dtype,
                "theirs": theirs,
                "ours": "/".join(sorted(group["ours"].iloc[0])),
                "sources": _sources(list(group["write_up"])),
            }
            for (component, dtype, theirs), group in pairs[~among].groupby(columns, sort=False)
        ],
    }


def _disputed(pairs: pd.DataFrame) -> list[dict]:
    """List the components of which the write-ups state different types, with who says what."""
    found = []
    for (component, dtype), group in pairs.groupby(["component", "autocast_dtype"], sort=False):
        said = group.groupby("theirs", sort=False)["write_up"].agg(list)
        if len(said) > 1:
            words = [f"{theirs} ({_sources(names)})" for theirs, names in said.items()]
            found.append(
                {"component": autocast_findings.COMPONENTS[component], "autocast_dtype": dtype, "words": words}
            )
    return found
