"""Which rows of the precision stage answer which question."""

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
