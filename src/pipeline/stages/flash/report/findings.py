"""What the flash tables say: every number and every comparative word of the section's prose."""

import pandas as pd

from pipeline.report.section import compare, growth_exponent
from pipeline.report.table_rows import geometric_mean, ok
from pipeline.stages.flash.cell import PEERS, PHASES
from pipeline.stages.flash.report.selection import (
    IMPL_WORDS,
    IMPLS,
    LONG,
    PROBLEM,
    best_peer,
    leaderboard,
    main_grid,
    main_head_dim,
    named,
    of,
    other_shapes,
    ours,
    rival,
    speedups,
)

QUANTITIES = {"output": "forward", "dq": "backward", "dk": "backward", "dv": "backward"}
TWICE = 2.0
# Half a unit in the last place. Where eager happens to be more exact than that, the others are held to one rounding.
UNIT_ROUNDOFF = {"bf16": 2.0**-9, "fp32": 2.0**-24}


def setting(rows: pd.DataFrame) -> dict:
    """Say what was measured, where and how often."""
    measured = ok(rows)
    grid = main_grid(rows)
    return {
        "machines": list(measured["machine"].unique()),
        "torch": list(measured["torch"].unique()),
        "dtypes": list(measured["dtype"].unique()),
        "head_dims": sorted(grid["head_dim"].unique()),
        "lengths": sorted(grid["seq_len"].unique()),
        "impls": [f"{impl} ({IMPL_WORDS[impl]})" for impl in measured["impl"].unique()],
        "on_gpu": bool((measured["clock"] == "device").any()),
        "fewest_samples": int(measured["n"].min()),
        "most_samples": int(measured["n"].max()),
        "few": int((measured["n"] < measured["setting_min_samples"]).sum()),
        "exposed": _exposed(measured),
    }


def _exposed(measured: pd.DataFrame) -> list[dict]:
    """List the implementations that have rows of which most samples may hold launch gaps, and how many rows."""
    if "exposed_samples" not in measured:
        return []
    exposed = measured[measured["exposed_samples"] > measured["n"] / 2]
    return [
        {"impl": impl, "rows": len(group), "of": len(of(measured, impl))}
        for impl, group in exposed.groupby("impl", sort=False)
    ]


def errors(rows: pd.DataFrame) -> pd.DataFrame:
    """Give, per dtype, implementation and quantity, the largest relative error, and the largest over eager's own.

    Columns dtype, impl, quantity, rel_error, over_eager (NaN where eager has none).
    """
    found = []
    for quantity, part in QUANTITIES.items():
        column = f"{quantity}_rel_error"
        known = rows[(rows["phase"] == part) & rows[column].notna()] if column in rows else rows.head(0)
        eager = of(known, "eager").set_index(PROBLEM)[column].rename("eager_error")
        known = known.join(eager, on=PROBLEM)
        eager_error = known["eager_error"].clip(lower=known["dtype"].map(UNIT_ROUNDOFF))
        known = known.assign(over_eager=known[column] / eager_error, quantity=quantity, rel_error=known[column])
        columns = ["dtype", "impl", "quantity"]
        found.append(known.groupby(columns, sort=False)[["rel_error", "over_eager"]].max().reset_index())
    return pd.concat(found, ignore_index=True)


def correctness(rows: pd.DataFrame, quantities: tuple[str, ...]) -> list[dict]:
    """Say, per dtype, how far ours is from fp64, and whether that is within twice eager's distance."""
    found = []
    table = errors(rows)
    mine = table[(table["impl"] == ours(rows)) & table["quantity"].isin(quantities)]
    for dtype, group in mine.groupby("dtype", sort=False):
        over = group.set_index("quantity")["over_eager"].dropna()
        entry = {"dtype": dtype, "rel_error": f"{group['rel_error'].max():.1e}", "over_eager": over}
        found.append(entry | {"within": bool(len(over)) and bool((over <= TWICE).all())})
    return found


def gains(rows: pd.DataFrame) -> pd.DataFrame:
    """Give geometric means of the others' times over ours on the assignment's grid.

    Columns dtype, phase, against, problems, mean, least, most, slower: how many problems ours is slower at.
    """
    grid = main_grid(rows)
    lines = []
    for against in ("best", *PEERS):
        ratios = ok(speedups(grid, ours(rows), against))
        for (dtype, part), group in ratios.groupby(["dtype", "phase"], sort=False):
            lines.append({"dtype": dtype, "phase": part, "against": against, **_gain(group)})
    return pd.DataFrame(lines)


def _gain(ratios: pd.DataFrame) -> dict:
    values = ratios["median_ratio"]
    return {
        "problems": len(values),
        "mean": geometric_mean(values),
        "least": values.min(),
        "most": values.max(),
        "word": compare(1, geometric_mean(values)),
        "slower": int((values < 1).sum()),
        "faster": int((values > 1).sum()),
    }


def against_peers(rows: pd.DataFrame) -> list[dict]:
    """Say, per dtype, how ours stands to torch's implementations where the device decides.

    To the best of them and to the rival in the forward pass and in both; to each other one in both.
    """
    grid = main_grid(rows)
    longer = grid[grid["seq_len"] >= LONG]
    grid = longer if len(ok(longer)) else grid
    found = []
    for dtype in ok(grid)["dtype"].unique():
        here = grid[grid["dtype"] == dtype]
        best = _gains_by_pass(here, ours(rows), "best")
        if "forward_backward" not in best:
            continue
        by_peer = {peer: _gains_by_pass(here, ours(rows), peer) for peer in PEERS if peer != rival(here)}
        entry = {
            "dtype": dtype,
            "from_length": int(ok(here)["seq_len"].min()),
            **best,
            "peers": {
                peer: gains["forward_backward"] for peer, gains in by_peer.items() if "forward_backward" in gains
            },
        }
        beside = _gains_by_pass(here, ours(rows), rival(here)) if rival(here) else {}
        if {"forward", "forward_backward"} <= set(beside):
            entry["rival"] = {"impl": rival(here), **beside, "errors": _errors_over_ours(here, rival(here), ours(rows))}
        found.append(entry)
    return found


def _gains_by_pass(rows: pd.DataFrame, mine: str, against: str) -> dict[str, dict]:
    ratios = ok(speedups(rows, mine, against))
    return {part: _gain(group) for part, group in ratios.groupby("phase", sort=False)}


def _errors_over_ours(rows: pd.DataFrame, other: str, mine: str) -> pd.Series:
    """Divide the largest errors of another implementation by those of mine, by quantity."""
    largest = errors(rows).set_index(["impl", "quantity"])["rel_error"]
    if not {other, mine} <= set(largest.index.get_level_values("impl")):
        return pd.Series(dtype=float)
    return (largest[other] / largest[mine]).dropna()


def rates(rows: pd.DataFrame) -> list[dict]:
    """Give, per dtype, the highest rate of ours and of the best peer, forward + backward, its place and its share."""
    found = []
    for dtype, group in ok(rows).groupby("dtype", sort=False):
        both = group[group["phase"] == "forward_backward"]
        candidates = {"ours": of(both, ours(rows)), "peer": best_peer(both)}
        entry = {"dtype": dtype}
        for who, table in candidates.items():
            if len(table):
                entry[who] = table.loc[table["tflops_per_s"].idxmax()].to_dict()
        if "ours" in entry:
            found.append(entry)
    return found


def growth(rows: pd.DataFrame) -> list[dict]:
    """Give, per dtype, the exponent of our forward + backward time between the two longest sequences, by head_dim."""
    found = []
    both = ok(of(main_grid(rows), ours(rows))).query("`phase` == 'forward_backward'")
    for dtype, group in both.groupby("dtype", sort=False):
        exponents = {}
        for head_dim, line in group.groupby("head_dim"):
            two = line.nlargest(2, "seq_len")
            # Growth depends on length: what ends earlier says nothing of the longest sequences.
            if len(two) == 2 and two["seq_len"].iloc[0] == group["seq_len"].max():
                exponents[named(head_dim)] = growth_exponent(two["seq_len"], two["median_ms"])
        if exponents:
            spread = pd.Series(exponents)
            found.append({"dtype": dtype, "exponents": spread})
    return found


def backward_over_forward(rows: pd.DataFrame) -> list[dict]:
    """Give, per dtype, our backward time over our forward at the longest sequence, by head_dim."""
    mine = ok(of(main_grid(rows), ours(rows)))
    found = []
    for dtype, group in mine.groupby("dtype", sort=False):
        both = group.pivot_table(index=["head_dim", "seq_len"], columns="phase", values="median_ms")
        if not {"forward", "backward"} <= set(both):
            continue
        both = both.dropna(subset=["forward", "backward"]).reset_index()
        longest = both[both["seq_len"] == both["seq_len"].max()]
        ratio = (longest["backward"] / longest["forward"]).set_axis(longest["head_dim"].map(named))
        if len(ratio):
            found.append({"dtype": dtype, "seq_len": int(longest["seq_len"].max()), "ratio": ratio})
    return found


def ran_out(rows: pd.DataFrame) -> list[dict]:
    """List, per implementation and dtype, the shortest sequence of the grid at which memory ran out."""
    failed = main_grid(rows)[main_grid(rows)["status"] == "oom"]
    return [
        {"impl": impl, "dtype": dtype, "seq_len": int(group["seq_len"].min())}
        for (impl, dtype), group in failed.groupby(["impl", "dtype"], sort=False)
    ]


def memory(rows: pd.DataFrame) -> dict:
    """Give what each implementation adds to its inputs' memory at the longest length that eager and ours both did."""
    if "extra_bytes" not in rows:
        return {}
    both = main_grid(rows)[(main_grid(rows)["phase"] == "forward_backward") & main_grid(rows)["extra_bytes"].notna()]
    shared = of(both, "eager").merge(of(both, ours(rows)), on=PROBLEM, suffixes=("_eager", "_ours"))
    shared = shared[shared["head_dim"] == main_head_dim(rows)]
    if shared.empty:
        return {}
    row = shared.loc[shared["seq_len"].idxmax()]
    return {
        "dtype": row["dtype"],
        "head_dim": int(row["head_dim"]),
        "seq_len": int(row["seq_len"]),
        "eager": row["extra_bytes_eager"],
        "ours": row["extra_bytes_ours"],
        "ratio": row["extra_bytes_eager"] / row["extra_bytes_ours"],
    }


def latency(rows: pd.DataFrame) -> list[dict]:
    """Compare lone calls below the length where the device decides: ours with each SDPA backend; empty on a CPU.

    choice: the backend that SDPA takes by itself at all of these problems, if it is one.
    """
    if "median_call_ms" not in rows:
        return []
    short = main_grid(rows)[(main_grid(rows)["seq_len"] < LONG) & main_grid(rows)["median_call_ms"].notna()]
    found = []
    for dtype, group in short.groupby("dtype", sort=False):
        for part in PHASES:
            calls = group[group["phase"] == part].set_index([*PROBLEM, "impl"])["median_call_ms"].unstack("impl")
            if ours(rows) not in calls:
                continue
            others = {
                peer: geometric_mean((calls[peer] / calls[ours(rows)]).dropna())
                for peer in calls
                if peer.startswith("sdpa") and (calls[peer] / calls[ours(rows)]).notna().any()
            }
            if others:
                typical = calls[ours(rows)].dropna().median()
                entry = {"dtype": dtype, "name": part, "ours_ms": typical, "others": pd.Series(others)}
                roles = {"choice": _only_choice(group), "rival": rival(group)}
                found.append(entry | {role: peer for role, peer in roles.items() if peer in others})
    return found


def _only_choice(rows: pd.DataFrame) -> str | None:
    """Return the backend that SDPA takes by itself for all rows; None where it is not one."""
    choices = rows["sdpa_choice"].unique() if "sdpa_choice" in rows else []
    return choices[0] if len(choices) == 1 else None


def shapes_standing(rows: pd.DataFrame) -> list[dict]:
    """Say, per dtype, how ours stands to the best of torch's implementations beside the assignment's grid."""
    beside = other_shapes(rows)
    ratios, best = ok(speedups(beside, ours(rows), "best")), best_peer(beside)
    found = []
    # Inference and training: neither has a backward pass alone.
    ratios = ratios[ratios["phase"] != "backward"]
    for dtype, group in ratios.groupby("dtype", sort=False):
        parts = [
            {"name": part, "peers": _impls_at(best, line), **_gain(line)}
            for part, line in group.groupby("phase", sort=False)
        ]
        heads = sorted(group["num_heads"].unique())
        found.append({"dtype": dtype, "heads": heads, "peers": _impls_at(best, group), "parts": parts})
    return found


def _impls_at(rows: pd.DataFrame, ratios: pd.DataFrame) -> list[str]:
    """List the implementations that have a row at the problems and passes of ratios."""
    names = set(rows.merge(ratios[[*PROBLEM, "phase"]])["impl"])
    return [name for name in IMPLS if name in names]


def leaderboard_standing(rows: pd.DataFrame) -> list[dict]:
    """Rank the implementations at the leaderboard's shape by forward + backward, per dtype; empty if not measured."""
    both = ok(leaderboard(rows)).query("`phase` == 'forward_backward'")
    found = []
    for dtype, group in both.groupby("dtype", sort=False):
        times = group.set_index("impl")["median_ms"].sort_values()
        entry = {"dtype": dtype, "fastest": times.index[0], "fastest_ms": times.iloc[0]}
        mine = ours(rows)
        if mine in times:
            entry |= {"ours_ms": times[mine], "place": list(times.index).index(mine) + 1, "of": len(times)}
            peers = times.drop([name for name in times.index if name not in PEERS])
            if len(peers):
                entry |= {"over_peer": peers.iloc[0] / times[mine], "word": compare(times[mine], peers.iloc[0])}
                entry["peer"] = peers.index[0]
        found.append(entry)
    return found
