"""Whether the 8B model is right, as its section tells: errors beside fp32, and the loss over steps."""

import numpy as np
import pandas as pd

from pipeline.report.chart import Axis, Chart
from pipeline.report.formats import count, number, significant, text
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


def descents(rows: pd.DataFrame) -> Table:
    """Write where the loss of 20 steps begins and ends, and its largest rise in one step."""
    found = rows[rows["losses"].map(lambda losses: isinstance(losses, list) and len(losses) > 1)]
    jumps = [_largest_rise(losses) for losses in found["losses"]]
    found = found.assign(**{name: [jump[name] for jump in jumps] for name in ("rise", "rise_step", "after")})
    form = lambda loss: significant(loss, 4)  # noqa: E731
    columns = [
        ("implementation", "name", text),
        ("first loss", "first_loss", form),
        ("last loss", "last_loss", form),
        ("largest rise in a step", "rise", number),
        ("at step", "rise_step", count),
        ("loss a step later", "after", form),
    ]
    return Table("descents", "The loss over steps with one batch:", found, columns)


def _largest_rise(losses: list[float]) -> dict[str, float | None]:
    """Return the largest rise of the loss in a step, the step, counted from 1, and the loss a step later."""
    rises = np.diff(losses)
    step = int(rises.argmax()) + 1
    if rises[step - 1] <= 0:
        return {"rise": 0.0, "rise_step": None, "after": None}
    return {"rise": float(rises[step - 1]), "rise_step": step + 1, "after": next(iter(losses[step + 1 :]), None)}


def losses(rows: pd.DataFrame) -> Chart:
    """Draw the loss over steps."""
    found = rows[rows["losses"].map(lambda losses: isinstance(losses, list))]
    long = found.assign(loss=found["losses"]).explode("loss") if len(found) else found.assign(loss=np.nan)
    long = long.assign(loss=long["loss"].astype(float), step=long.groupby("impl").cumcount() + 1)
    axes = Axis("step", "step"), Axis("loss", "loss (nats)", zero=False)
    return Chart("losses", "The loss over steps with one batch", long, "line", *axes, "name")
