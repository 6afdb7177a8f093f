"""The health section: what each GPU and link does, and which of them stand out."""

from collections.abc import Hashable, Iterator, Mapping
from typing import Any

import pandas as pd

from pipeline.report.formats import number, percent
from pipeline.report.frame import with_figures
from pipeline.report.section import Section, say
from pipeline.report.table import Table
from pipeline.stages.health.rows import HARMLESS

WORDS = {
    ("matmul", "alone"): "products, alone",
    ("matmul", "together"): "products, all GPUs at once",
    ("copy", "alone"): "copies in memory, alone",
    ("copy", "together"): "copies in memory, all GPUs at once",
}
RATES = {"matmul": ("tflops_per_s", "TFLOP/s"), "copy": ("gb_per_s", "GB/s")}
GPU_HEADS = {
    "name": "GPU (UUID)",
    "matmul_alone": "products alone (TFLOP/s)",
    "matmul_together": "all at once",
    "copy_alone": "copies alone (GB/s)",
    "copy_together": "all at once",
    "mean_sm_clock_mhz": "SM clock (MHz)",
    "mean_power_w": "power (W)",
    "max_temperature_c": "hottest (°C)",
    "nvlinks_up": "NVLinks up",
    "errors": "ECC errors, not corrected of all",
}
WITHOUT_TIMES = ("oom", "wrong")
Line = Mapping[Hashable, Any]


def build(rows: pd.DataFrame, beside: Mapping[str, pd.DataFrame]) -> Section:
    """Return the section of the health stage."""
    rows = rows.assign(name=[_name(row, "gpu_index") for row in rows.to_dict("records")])
    states, rates, links = (rows[rows["kind"] == kind] for kind in ("gpu", "rate", "link"))
    states = states[states["status"] == "ok"]
    out = pd.DataFrame([*_slow(rates, links), *_found(states)], columns=["name", "what", "here", "expected", "below"])
    answer = say(
        "GPUs measured: {gpus}, links between them: {links}. Slow beside others of their kind: {slow}. Other findings: "
        "{others}.",
        gpus=len(states),
        links=len(with_figures(links)),
        slow=int(out["below"].notna().sum()),
        others=int(out["below"].isna().sum()),
    )
    return Section(answer, [_gpus(states, rates), _links(links)], alarms=[_alarms(out)], trust=answer)


def _name(row: Line, index: str) -> str:
    """Name a GPU by its number and the first digits of its UUID."""
    if pd.isna(row[index]):
        return ""
    return f"{row[index]:.0f} ({str(row['uuid']).removeprefix('GPU-')[:8]})"


def _slow(rates: pd.DataFrame, links: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Yield works and links that are slow, and those without times."""
    for row in pd.concat([rates, links]).to_dict("records"):
        is_link = row["kind"] == "link"
        what = f"copies to GPU {row['peer_index']:.0f}" if is_link else WORDS[row["work"], row["load"]]
        column, unit = RATES["copy" if is_link else row["work"]]
        told = {"name": row["name"], "what": what}
        if row["status"] in WITHOUT_TIMES:
            yield told | {"here": f"{row['status']}: {row['reason']}", "expected": "times"}
        elif row["verdict"] == "slow":
            others = row[column] / (1 - row["below_pct"] / 100)
            yield told | {
                "here": f"{number(row[column])} {unit}",
                "expected": f"{number(others)} {unit}, the others' median",
                "below": row["below_pct"],
            }


def _found(states: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Yield what NVML told that is not as it should be."""
    for row in states.to_dict("records"):
        for finding in row["findings"]:
            what, here, expected = _words(row)[finding]
            yield {"name": row["name"], "what": what, "here": here, "expected": expected}


def _words(row: Line) -> dict[str, tuple[str, str, str]]:
    reasons = sorted(set(row["throttle_reasons"] or ()) - set(HARMLESS)) if _has(row, "throttle_reasons") else []
    pcie = f"generation {row['pcie_generation']:.0f}, {row['pcie_width']:.0f} lanes" if _has(row, "pcie_width") else ""
    return {
        "ecc": ("memory errors not corrected", f"{row['ecc_uncorrected']:.0f}", "0"),
        "row_remaps": ("bad rows of memory that could not be replaced", "yes", "no"),
        "pcie": (
            "PCIe link under load",
            pcie,
            f"generation {row['max_pcie_generation']:.0f}, {row['max_pcie_width']:.0f} lanes",
        ),
        "nvlinks": ("NVLinks up", f"{row['nvlinks_up']:.0f}", "as many as the others"),
        "nvlink_recoveries": ("NVLinks lost and back meanwhile", f"{row['nvlink_recoveries']:.0f}", "0"),
        "throttled": ("clock held down", ", ".join(reasons), "at most by the power limit"),
        "in_use": ("busy before the measurement", percent(row["utilization_before_pct"]), "idle"),
    }


def _has(row: Line, name: str) -> bool:
    return isinstance(row[name], list) or bool(pd.notna(row[name]))


def _alarms(out: pd.DataFrame) -> Table:
    caption = "GPUs that stand out. Look at these before you trust a time:"
    names = "name what here expected below:percent"
    return Table.of("standing_out", caption, out, names, all_rows=False, heads={"name": "GPU (UUID)"})


def _gpus(states: pd.DataFrame, rates: pd.DataFrame) -> Table:
    """Write a row per GPU: its rates alone and at once, and its state under load."""
    found = states.assign(errors=[_errors(row) for row in states.to_dict("records")])
    for (work, load), own in rates.groupby(["work", "load"]):
        value = own.drop_duplicates("gpu_index").set_index("gpu_index")[RATES[work][0]]
        found[f"{work}_{load}"] = found["gpu_index"].map(value)
    names = "name matmul_alone:number matmul_together:number copy_alone:number copy_together:number"
    names += " mean_sm_clock_mhz:count mean_power_w:count max_temperature_c:count nvlinks_up:count errors"
    caption = "Each GPU; clock, power and heat are those under load:"
    return Table.of("gpus", caption, found, names, all_rows=False, only_filled=True, heads=GPU_HEADS)


def _errors(row: Line) -> str | None:
    if not _has(row, "ecc_uncorrected") or not _has(row, "ecc_corrected"):
        return None
    return f"{row['ecc_uncorrected']:.0f} of {row['ecc_uncorrected'] + row['ecc_corrected']:.0f}"


def _links(links: pd.DataFrame) -> Table:
    caption = "Copies from GPU to GPU, one direction at a time, GB/s:"
    heads = {"name": "from GPU", "peer_index": "to", "gb_per_s": "GB/s"}
    return Table.of("links", caption, links, "name peer_index gb_per_s:number", across="to", heads=heads)
