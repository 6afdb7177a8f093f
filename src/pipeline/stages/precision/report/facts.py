"""Which rows of the precision stage answer which question, and how their numbers are written."""

import pandas as pd

from pipeline.stages.precision.cell import DEVICES


def figures_of(rows: pd.DataFrame, experiment: str) -> pd.DataFrame:
    """Keep the rows of an experiment that carry figures, in the order in which they were measured."""
    return rows[(rows["experiment"] == experiment) & (rows["status"] == "ok")].reset_index(drop=True)


def devices_with(rows: pd.DataFrame, experiment: str) -> list[str]:
    """Return the devices on which an experiment ran, GPUs first: the first is the one to show."""
    measured = set(figures_of(rows, experiment)["device"])
    return [device for device in reversed(DEVICES) if device in measured]


def shown(rows: pd.DataFrame, experiment: str) -> pd.DataFrame:
    """Keep the rows of an experiment from the device to show; empty where it ran nowhere."""
    measured = figures_of(rows, experiment)
    return measured[measured["device"].isin(devices_with(rows, experiment)[:1])].reset_index(drop=True)


def without_absent_devices(rows: pd.DataFrame) -> pd.DataFrame:
    """Leave out what was skipped on a device that has no figure at all, such as a GPU where there is none."""
    present = set(rows.loc[rows["status"] == "ok", "device"])
    return rows[rows["device"].isin(present) | (rows["status"] != "skipped")]


def plain(value: float) -> str:
    """Write a number as it is, to ten significant figures: 10.00013351, 4, 262144."""
    return f"{value:.10g}"


def brief(value: float) -> str:
    """Write a number of any size to three significant figures: 0.0468, 5.46e+17."""
    return "0" if value == 0 else f"{value:.3g}"
