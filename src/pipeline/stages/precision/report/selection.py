"""Which rows of the precision tables answer which question, and how their numbers are written."""

from collections.abc import Iterable

import pandas as pd

from pipeline.stages.precision.cell import DEVICES, EXPERIMENTS


def figures_of(rows: pd.DataFrame, experiment: str) -> pd.DataFrame:
    """Keep the rows of an experiment that carry figures, in the order in which they were measured."""
    return rows[(rows["experiment"] == experiment) & (rows["status"] == "ok")].reset_index(drop=True)


def devices_with(rows: pd.DataFrame, experiment: str) -> list[str]:
    """Return the devices on which an experiment ran, GPUs first: the first is the one to show."""
    found = set(figures_of(rows, experiment)["device"])
    return [device for device in reversed(DEVICES) if device in found]


def on_device(rows: pd.DataFrame, experiment: str, device: str) -> pd.DataFrame:
    """Keep the rows of an experiment that carry figures from one device."""
    found = figures_of(rows, experiment)
    return found[found["device"] == device].reset_index(drop=True)


def shown(rows: pd.DataFrame, experiment: str) -> pd.DataFrame:
    """Keep the rows of an experiment from the device to show; empty where it ran nowhere."""
    devices = devices_with(rows, experiment)
    return on_device(rows, experiment, devices[0]) if devices else figures_of(rows, experiment)


def devices_beside(rows: pd.DataFrame, experiment: str, keys: list[str], columns: list[str]) -> dict:
    """Compare two devices row by row: devices, of (how many rows) and differ, the rows not equal in these columns.

    Empty where the experiment ran on one device only.
    """
    devices = devices_with(rows, experiment)
    if len(devices) < 2:
        return {}
    first, second = (on_device(rows, experiment, device) for device in devices)
    both = first.merge(second, on=keys, suffixes=("", "_other"))
    same = pd.Series(True, index=both.index)
    for column in columns:
        ours, theirs = both[column], both[f"{column}_other"]
        same &= (ours == theirs) | (ours.isna() & theirs.isna())
    return {"devices": devices, "of": len(both), "differ": both[~same]}


def device_lines(rows: pd.DataFrame) -> list[dict]:
    """Name each device that anything ran on: device, device_name, torch."""
    measured = rows[rows["status"] == "ok"]
    columns = ["device", "device_name", "torch"]
    return measured.drop_duplicates("device")[columns].to_dict("records") if len(measured) else []


def missing(rows: pd.DataFrame) -> list[dict]:
    """List what carries no figure, a line a device and reason: device, experiments, status, reason."""
    failed = rows[rows["status"] != "ok"]
    if failed.empty:
        return []
    groups = failed.fillna({"reason": ""}).groupby(["device", "status", "reason"], sort=False)["experiment"]
    return [
        {"device": device, "status": status, "reason": reason, "experiments": _in_order(found.unique())}
        for (device, status, reason), found in groups
    ]


def _in_order(experiments: Iterable[str]) -> list[str]:
    return sorted(experiments, key=EXPERIMENTS.index)


def plain(value: float) -> str:
    """Write a number as it is, to ten significant figures: 10.00013351, 4, 262144."""
    return f"{value:.10g}"


def brief(value: float) -> str:
    """Write a number of any size to three significant figures: 0.0468, 5.46e+17."""
    return "0" if value == 0 else f"{value:.3g}"
