"""What the autocast tables say of data types: the table and the facts of the section's prose."""

import pandas as pd

from pipeline.report.table_rows import spread
from pipeline.report.tables import markdown, pivot
from pipeline.stages.precision.cases import AUTOCAST_DTYPES
from pipeline.stages.precision.report.selection import devices_with, figures_of, on_device

# Component: how the table names it. The order is that of a training step.
COMPONENTS = {
    "parameters": "parameters",
    "input": "input",
    "matmul_inputs": "inputs of the matrix products",
    "fc1_output": "output of the first linear layer",
    "relu_output": "output of the ReLU",
    "layernorm_input": "input of the layer-norm kernel",
    "layernorm_statistics": "mean and 1/std of layer norm",
    "layernorm_output": "output of layer norm",
    "logits": "logits",
    "loss": "loss",
    "activation_gradients": "gradients of activations",
    "gradients": "gradients of parameters",
}
# What the assignment asks for, in its order.
ASKED = ("parameters", "fc1_output", "layernorm_output", "logits", "loss", "gradients")
# The loss that the backward pass starts from, and that a training step has.
TRAINING_LOSS = "cross-entropy"
PER_DETAIL = ("loss",)


def facts(rows: pd.DataFrame) -> dict:
    """Return the table and findings on data types; empty where autocast was not observed."""
    devices = devices_with(rows, "autocast")
    if not devices:
        return {}
    seen = observed(rows)
    return {
        "devices": devices,
        "table": table(seen),
        "answers": [answer(seen, device, dtype) for device in devices for dtype in AUTOCAST_DTYPES],
        "differences": differences(seen) if len(devices) > 1 else [],
        "losses": [losses(seen, device) for device in devices],
        "layer_norm": [layer_norm(seen, device, dtype) for device in devices for dtype in AUTOCAST_DTYPES],
    }


def observed(rows: pd.DataFrame) -> pd.DataFrame:
    """Put the details of a component together: device, autocast_dtype, component, detail, observed.

    A loss keeps its detail, for the losses have different types; of other components `observed` joins what it had.
    """
    found = figures_of(rows, "autocast")
    found["detail"] = found["detail"].where(found["component"].isin(PER_DETAIL), "")
    keys = ["device", "autocast_dtype", "component", "detail"]
    groups = found.groupby(keys, sort=False)["observed_dtype"]
    return groups.agg(lambda dtypes: "/".join(sorted(set(dtypes)))).rename("observed").reset_index()


def table(seen: pd.DataFrame) -> str:
    """Write the data type of every component, a column a device and autocast type."""
    order = list(COMPONENTS)
    seen = seen.sort_values("component", key=lambda column: column.map(order.index), kind="stable")
    names = seen["component"].map(COMPONENTS)
    lines = seen.assign(
        component=names.where(seen["detail"] == "", names + ": " + seen["detail"]),
        column=seen["device"] + ", " + seen["autocast_dtype"],
    )
    return markdown(pivot(lines, ["component"], "column", lines["observed"]))


def one(seen: pd.DataFrame, device: str, autocast_dtype: str, component: str, detail: str = "") -> str:
    """Return the data type that a component had, or `not seen` where no operator or hook showed it."""
    wanted = {"device": device, "autocast_dtype": autocast_dtype, "component": component, "detail": detail}
    found = seen.loc[(seen[list(wanted)] == pd.Series(wanted)).all(axis=1), "observed"]
    return found.iloc[0] if len(found) else "not seen"


def answer(seen: pd.DataFrame, device: str, autocast_dtype: str) -> dict:
    """Give the data types that the assignment asks for, by component in its order."""
    details = {"loss": TRAINING_LOSS}
    dtypes = {name: one(seen, device, autocast_dtype, name, details.get(name, "")) for name in ASKED}
    words = [f"{COMPONENTS[name]} {dtype}" for name, dtype in dtypes.items()]
    return {"device": device, "autocast_dtype": autocast_dtype, "words": words}


def differences(seen: pd.DataFrame) -> list[dict]:
    """List the components whose data type depends on the device: component, autocast_dtype, by_device."""
    keys = ["autocast_dtype", "component", "detail"]
    wide = spread(seen, keys, "device", "observed")
    differ = wide[wide.nunique(axis=1) > 1].reset_index().to_dict("records")
    devices = list(wide.columns)
    return [
        {
            "component": COMPONENTS[line["component"]] + (f" ({line['detail']})" if line["detail"] else ""),
            "autocast_dtype": line["autocast_dtype"],
            "by_device": [f"{line[device]} on {device}" for device in devices],
        }
        for line in differ
    ]


def losses(seen: pd.DataFrame, device: str) -> dict:
    """Group the losses by their data type under autocast to fp16, the type that the assignment asks about."""
    found = seen[(seen["device"] == device) & (seen["autocast_dtype"] == "fp16") & (seen["component"] == "loss")]
    return {"device": device, "by_dtype": found.groupby("observed", sort=False)["detail"].agg(list).to_dict()}


def layer_norm(seen: pd.DataFrame, device: str, autocast_dtype: str) -> dict:
    """Say in which type layer norm's kernel takes its input, keeps its statistics and gives its output."""
    parts = {"input": "layernorm_input", "statistics": "layernorm_statistics", "output": "layernorm_output"}
    dtypes = {name: one(seen, device, autocast_dtype, component) for name, component in parts.items()}
    return {"device": device, "autocast_dtype": autocast_dtype, **dtypes}


def of_component(rows: pd.DataFrame, device: str, autocast_dtype: str, component: str, detail: str) -> set[str]:
    """Return every data type that a component had on a device, of one detail or, without one, of all."""
    found = on_device(rows, "autocast", device)
    found = found[(found["autocast_dtype"] == autocast_dtype) & (found["component"] == component)]
    return set(found.loc[(found["detail"] == detail) | (detail == ""), "observed_dtype"])
