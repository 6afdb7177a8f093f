"""Whether the 8B model is right, as its section tells: errors beside fp32, and the loss over steps."""

import numpy as np
import pandas as pd

from pipeline.report.chart import Axis, Chart
from pipeline.report.formats import number, text
from pipeline.report.table import Table


def checks(rows: pd.DataFrame) -> Table:
    """Write how far loss and gradients of few layers are from the plain model's in fp32."""
    first = rows.iloc[0]
    columns = [
        ("model", "name", text),
        ("loss off by", "loss_error", number),
        ("all gradients off by", "gradient_error", number),
        ("worst gradient off by", "worst_gradient_error", number),
    ]
    caption = (
        f"Beside the plain model in fp32, {first['setting_checked_layers']:.0f} layers at context "
        f"{min(first['setting_checked_context'], first['context_length']):,.0f}, as shares:"
    )
    return Table("checks", caption, rows[rows["loss_error"].notna()], columns)


def losses(rows: pd.DataFrame) -> Chart:
    """Draw the loss over steps."""
    found = rows[rows["losses"].map(lambda losses: isinstance(losses, list))]
    long = found.assign(loss=found["losses"]).explode("loss") if len(found) else found.assign(loss=np.nan)
    long = long.assign(loss=long["loss"].astype(float), step=long.groupby("impl").cumcount() + 1)
    axes = Axis("step", "step"), Axis("loss", "loss (nats)", zero=False)
    return Chart("losses", "The loss over steps with one batch", long, "line", *axes, "name")
