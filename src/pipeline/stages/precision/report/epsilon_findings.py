"""What the eps tables say: what each format keeps of layer norm's eps."""

import pandas as pd

from pipeline.report.tables import markdown
from pipeline.stages.precision.cases import FORMAT_NAMES
from pipeline.stages.precision.report.selection import brief, shown


def facts(rows: pd.DataFrame) -> dict:
    """Return the table and findings on eps; empty where it was not measured."""
    found = shown(rows, "layer_norm_eps")
    if found.empty:
        return {}
    lost = found[found["stored_eps"] == 0]
    kept = found[found["stored_eps"] > 0]
    pairs = (
        ("stored_eps", "predicted_stored_eps"),
        ("swallowed_from_variance", "predicted_swallowed_from_variance"),
        ("zeros_nonfinite_in_format", "predicted_zeros_nonfinite"),
    )
    exact = pd.concat([found[measured] == found[predicted] for measured, predicted in pairs], axis=1).all(axis=1)
    return {
        "device": found["device"].iloc[0],
        "table": table(found),
        "exact": int(exact.sum()),
        "of": len(found),
        "lost": _by_format(lost),
        "kept_everywhere": [name for name in FORMAT_NAMES if name not in set(lost["dtype"])],
        "lost_is_nonfinite": bool((lost["zeros_nonfinite_in_format"] == 1).all()),
        "kept_is_finite": bool((kept["zeros_nonfinite_in_format"] == 0).all()),
        "kernel_is_finite": bool((found["zeros_nonfinite_kernel"] == 0).all()),
    }


def _by_format(lost: pd.DataFrame) -> list[dict]:
    groups = lost.groupby("dtype", sort=False)["eps"]
    return [{"dtype": dtype, "eps": [f"{eps:g}" for eps in group]} for dtype, group in groups]


def table(found: pd.DataFrame) -> str:
    """Write what each format makes of each eps."""
    outputs = found["zeros_nonfinite_in_format"].map(lambda share: "not finite" if share else "0")
    kernels = found["zeros_nonfinite_kernel"].map(lambda share: "not finite" if share else "0")
    return markdown(
        pd.DataFrame(
            {
                "format": found["dtype"],
                "eps": found["eps"].map("{:g}".format),
                "stored as": found["stored_eps"].map("{:.6g}".format),
                "no effect from variance": found["swallowed_from_variance"].map(brief),
                "predicted": found["predicted_swallowed_from_variance"].map(brief),
                "a row of zeros gives": outputs,
                "by torch's kernel": kernels,
            }
        )
    )
