"""What the sharding tables say: every number and every comparative word of the section's prose."""

import pandas as pd

from pipeline.report.side_by_side import against
from pipeline.report.table_rows import ok
from pipeline.stages.sharding.cell import KINDS
from pipeline.stages.sharding.report.selection import NAMES, kinds, memory, steps, traffic

# Times nearer to each other than this are the same.
TOLERANCE = 0.01
# How far a predicted peak may be from the measured one to be called right.
PEAK_TOLERANCE = 0.03
PLAIN, OURS, TORCHS = NAMES.values()


def by_cell(rows: pd.DataFrame) -> list[dict]:
    """Give, for every cell of which something was measured, all that the section says of it."""
    return [_cell(name, cell) for name, cell in rows.groupby("cell_name", sort=False) if not ok(steps(cell)).empty]


def _cell(name: str, rows: pd.DataFrame) -> dict:
    whole = ok(steps(rows)).set_index("optimizer")
    first = whole.iloc[0]
    return {
        "name": name,
        "world_size": int(first["world_size"]),
        "agree": weights(whole),
        "memory": states(rows),
        "exact": exact(rows),
        "peaks": peaks(rows),
        "peak_tolerance": PEAK_TOLERANCE,
        "ours_peak": ours_peak(rows),
        "ours_vs_plain": against(whole, OURS, PLAIN, TOLERANCE),
        "ours_vs_torch": against(whole, OURS, TORCHS, TOLERANCE),
        "traffic": volumes(rows),
    }


def weights(whole: pd.DataFrame) -> dict:
    """Judge the weights after as many steps: the largest difference from those of the first optimizer."""
    differences = whole["weight_difference"].dropna()
    if len(differences) < 2:
        return {}
    tolerance = float(whole["weight_tolerance"].iloc[0])
    return {"difference": differences.max(), "tolerance": tolerance, "agree": bool((differences <= tolerance).all())}


def states(rows: pd.DataFrame) -> dict:
    """Give, per optimizer, the bytes of each kind in a warm step, and what sharing the state out saves."""
    found = kinds(rows).reset_index().query("moment == 'after_step'").set_index("optimizer")
    result = {"by_optimizer": found[list(KINDS)].to_dict("index")}
    if {PLAIN, OURS} <= set(found.index):
        plain, ours = found.loc[PLAIN], found.loc[OURS]
        result |= {
            "saved_bytes": plain["optimizer_state"] - ours["optimizer_state"],
            "saved_share": 1 - ours["counted"] / plain["counted"],
            "state_ratio": plain["optimizer_state"] / ours["optimizer_state"],
        }
    return result


def exact(rows: pd.DataFrame) -> dict:
    """Tell whether every counted kind has just the bytes that were predicted, and the largest difference if not."""
    found = memory(ok(rows))
    found = found[found["kind"].isin(KINDS)]
    difference = (found["measured_bytes"] - found["predicted_bytes"]).abs().max()
    return {"all": bool(difference == 0), "largest_bytes": float(difference), "count": len(found)}


def peaks(rows: pd.DataFrame) -> pd.DataFrame:
    """Give each optimizer's peak over a warm step, predicted and measured; empty on a CPU.

    Index optimizer; columns measured_bytes, predicted_bytes, requested_bytes (the peak of what was asked for),
    error (predicted over measured, minus one), requested_error, where (the moment up to which the peak fell).
    """
    found = memory(ok(rows))
    found = found[found["moment"].isin(["before_step", "after_step"]) & found["kind"].isin(["peak", "requested_peak"])]
    if found.empty:
        return pd.DataFrame()
    by_kind = found.groupby(["kind", "optimizer"], sort=False)[["measured_bytes", "predicted_bytes"]].max()
    table = by_kind.loc["peak"].assign(requested_bytes=by_kind.loc["requested_peak", "measured_bytes"])
    requested = by_kind.loc["requested_peak"]
    table["error"] = table["predicted_bytes"] / table["measured_bytes"] - 1
    table["requested_error"] = requested["predicted_bytes"] / requested["measured_bytes"] - 1
    at = found[found["kind"] == "peak"].set_index(["optimizer", "moment"])["measured_bytes"].unstack("moment")
    table["where"] = at.idxmax(axis=1)
    return table


def ours_peak(rows: pd.DataFrame) -> dict:
    """Put our optimizer's peak beside torch's, and beside that of AdamW in full where that fitted; empty on a CPU."""
    table = peaks(rows)
    if not {OURS, TORCHS} <= set(table.index):
        return {}
    measured = table["measured_bytes"]
    return {"ours_bytes": measured[OURS], "torch_bytes": measured[TORCHS], "plain_bytes": measured.get(PLAIN)}


def volumes(rows: pd.DataFrame) -> dict:
    """Give, per optimizer, what a rank sends for gradients and for parameters, and ours over ZeRO stage 1's.

    ZeRO stage 1 reduce-scatters gradients and all-gathers parameters: together what one ring all-reduce sends.
    """
    found = traffic(rows)
    if found.empty:
        return {}
    sent = found.pivot(index="optimizer", columns="collective", values="sent_bytes")
    counted = found.set_index(["optimizer", "collective"])
    result = {
        "predicted": bool((found["measured_bytes"] == found["predicted_bytes"]).all()),
        "zero_bytes": sent["allreduce"].max(),
    }
    if OURS in sent.index:
        result |= {
            "gradients_bytes": sent.loc[OURS, "allreduce"],
            "parameters_bytes": sent.loc[OURS, "broadcast"],
            "ours_bytes": sent.loc[OURS].sum(),
            "over_zero": sent.loc[OURS].sum() / sent["allreduce"].max(),
            "broadcasts": int(counted.loc[(OURS, "broadcast"), "calls"]),
        }
    return result


def outcomes(rows: pd.DataFrame) -> pd.DataFrame:
    """List what has no figure, or an unstable one: a row a cell, status and reason, with its optimizers."""
    failed = steps(rows)[steps(rows)["status"] != "ok"].fillna({"reason": ""})
    keys = ["cell_name", "status", "reason"]
    return failed.groupby(keys, sort=False)["optimizer"].agg(list).reset_index()
