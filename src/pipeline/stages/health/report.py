"""Build the health section: the rates and state of each GPU and link, and which of them stand out."""

from collections.abc import Hashable, Iterator, Mapping
from typing import Any

import pandas as pd

from pipeline.report.formats import written
from pipeline.report.frame import with_values
from pipeline.report.section import Section
from pipeline.report.table import Table
from pipeline.report.words import Words
from pipeline.stages.health.rows import HARMLESS

WORDS = Words(__file__)
WITHOUT_TIMES = ("oom", "wrong")
# The column to show for each finding.
FINDING_COLUMNS = {
    "ecc": "ecc_uncorrected",
    "row_remaps": "failed_row_remaps",
    "pcie": "pcie_width",
    "nvlinks": "nvlinks_up",
    "nvlink_recoveries": "nvlink_recoveries",
    "throttled": "throttle_reasons",
    "in_use": "utilization_before_pct",
}


def build(rows: pd.DataFrame, other_stages: Mapping[str, pd.DataFrame]) -> Section:
    """Return the section of the health stage."""
    uuids = rows["uuid"].astype("string").str.removeprefix("GPU-").str[:8].fillna("no UUID")
    rate = rows["tflops_per_s"].fillna(rows["gb_per_s"])
    rows = rows.assign(name=written(rows.assign(uuid=uuids), "{gpu_index:.0f} ({uuid})"), rate=rate)
    states, rates, links = (rows[rows["kind"] == kind] for kind in ("gpu", "rate", "link"))
    states = states[states["status"] == "ok"]
    lines = [*_slow(pd.concat([rates, links])), *_findings(states)]
    outliers = pd.DataFrame(lines, columns=["name", "what", "here", "expected", "below_pct"])
    slow = int(outliers["below_pct"].notna().sum())
    measured = {"gpus": len(states), "links": len(with_values(links))}
    answer = WORDS.say("answer" if len(states) != 1 else "single", **measured, slow=slow, others=len(outliers) - slow)
    sent = WORDS.table("links", links, "name peer_index gb_per_s:number", across="peer_index")
    alarms = WORDS.table("standing_out", outliers, "name what here expected below_pct", all_rows=False)
    return Section(answer, [_gpus(states, rates), sent], alarms=[alarms], trust=answer)


def _slow(rows: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Yield a line for each work or link that is slow or has no times."""
    for row in rows.to_dict("records"):
        what = "link" if row["kind"] == "link" else f"{row['work']}_{row['load']}"
        if row["status"] in WITHOUT_TIMES:
            yield _line(row, what, "without_times")
        elif row["verdict"] == "slow":
            unit = "TFLOP/s" if row["work"] == "matmul" else "GB/s"
            others = row["rate"] / (1 - row["below_pct"] / 100)
            yield _line(row, what, "slow", unit=unit, others=others) | {"below_pct": row["below_pct"]}


def _findings(states: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Yield a line for each finding in NVML's readings."""
    for row in states.explode("findings").dropna(subset="findings").to_dict("records"):
        reading = row[FINDING_COLUMNS[row["findings"]]]
        text = ", ".join(sorted({*reading} - {*HARMLESS})) if isinstance(reading, list) else reading
        yield _line(row, row["findings"], row["findings"], read=text)


def _line(row: Mapping[Hashable, Any], what: str, how: str, **values: Any) -> dict[str, Any]:
    here, expected = (WORDS.say(f"{how}.{name}", row=row, **values) for name in ("here", "expected"))
    return {"name": row["name"], "what": WORDS.say(what, row=row), "here": here, "expected": expected}


def _gpus(states: pd.DataFrame, rates: pd.DataFrame) -> Table:
    """Tabulate each GPU's rates, alone and all at once, and its state under load."""
    by_gpu = rates.pivot_table("rate", "gpu_index", ["work", "load"], "first")
    found = states.join(by_gpu.set_axis(by_gpu.columns.map("_".join), axis="columns"), on="gpu_index")
    found = found.assign(all_errors=found["ecc_uncorrected"] + found["ecc_corrected"])
    found = found.assign(
        up=written(found, "{nvlinks_up:.0f}"),
        up_and_wrong=written(found, "{nvlinks_up:.0f} / {nvlink_crc_errors:.0f}"),
        errors=written(found, "{ecc_uncorrected:.0f} / {all_errors:.0f}"),
    )
    found = found.assign(links=found["up_and_wrong"].fillna(found["up"]))
    names = "name matmul_alone:number matmul_together:number copy_alone:number copy_together:number"
    names += " mean_sm_clock_mhz:count mean_power_w:count max_temperature_c:count links errors"
    return WORDS.table("gpus", found, names, all_rows=False, only_filled=True)
