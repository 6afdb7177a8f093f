"""Report ways to train on several ranks: steps, memory, traffic, captured steps.

Rows have the columns `way` and `case`, the cell in words.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from pipeline.cells.timed_rows import TRAIN_STEP, slowed_by_profiler
from pipeline.report.chart import Chart
from pipeline.report.formats import number, written
from pipeline.report.frame import having, in_order, with_values
from pipeline.report.markup import Markdown
from pipeline.report.section import Change
from pipeline.report.table import Table
from pipeline.report.versus import FASTER, against_base, judge
from pipeline.report.words import Words

WORDS = Words(__file__)
CASE = "{size}, {precision}, {world_size} ranks, batch {batch_size_per_rank} per rank, context {context_length}"
MODEL = "{size}, {precision}, {context_length}"
GATHERING = ("all_reduce", "all_gather")
KINDS = {"parameters": "parameters", "gradients": "gradients", "optimizer_state": "optimizer"}
LANE_BINS = 80  # of a captured step, as drawn


def of_cases(rows: pd.DataFrame, ways: Sequence[str]) -> pd.DataFrame:
    """Add the columns `way` and `case` to rows."""
    return rows.assign(way=ways, case=written(rows, CASE))


def whole_steps(rows: pd.DataFrame, order: Sequence[str], base: str) -> pd.DataFrame:
    """Return the whole steps by the host's clock, each against the way `base` of its case (`versus.against_base`).

    Also added: `each_repeat`, the medians of the repeats in ms, as text.
    """
    steps = rows[(rows["phase"] == TRAIN_STEP) & (rows["clock"] == "host")]
    steps = in_order(steps, ["case", "way"], {"case": steps["case"].unique(), "way": order})
    repeated = steps["medians_ms"].where(steps["repeats"] > 1)
    steps = steps.assign(each_repeat=repeated.map(lambda each: " / ".join(map(number, each)), na_action="ignore"))
    return against_base(steps, ["case"], steps["way"] == base)


def by_trust(steps: pd.DataFrame, compared: Sequence[str] = ()) -> list[pd.DataFrame]:
    """Return the steps of each case that has values, the most trustworthy first.

    First those that the host does not limit, then those with the most stable times among the ways `compared` (all if
    it is empty), then those with the most repeats.
    """

    def doubt(steps: pd.DataFrame) -> tuple[bool, float, float]:
        is_by_host = steps["limited_by"].eq("host").mean() >= 0.5
        outcomes = steps["status"][steps["way"].isin(compared or steps["way"])]
        return is_by_host, -outcomes.eq("ok").sum() / max(1, len(outcomes)), -steps["repeats"].max()

    cases = (of_case for _, of_case in steps.groupby("case", sort=False))
    return sorted((of_case for of_case in cases if len(with_values(of_case))), key=doubt)


def table(name: str, steps: pd.DataFrame, base: str, names: str, which: str = "") -> Table:
    """Write the steps of one case, one row per way; names: further columns. Columns without values are left out.

    which: words for the caption that say which steps are shown.
    """
    limits = with_values(steps)["limited_by"].unique()
    is_one_limit = len(limits) == 1 and pd.notna(limits[0])
    values = {
        "base": base,
        "repeats": steps["repeats"].max(),
        "groups": steps["cards"].str.split(", ").explode().nunique(),
        "limit": f"; {WORDS.say('limit', limit=limits[0])}" if is_one_limit else "",
        "which": which and f"; {which}",
    }
    steps = steps.drop(columns="limited_by") if is_one_limit else steps
    names = f"way median_ms each_repeat gain verdict limited_by exposed_communication_ms {names}"
    return replace(WORDS.table("ways", steps, names, only_filled=True, **values), name=name)


def tables(cases: Sequence[pd.DataFrame], base: str, names: str, which: str = "") -> list[Table]:
    """Write the tables of the first two cases."""
    return [table(f"ways_{place}", steps, base, names, which) for place, steps in enumerate(cases[:2], start=1)]


def fastest_by_ranks(steps: pd.DataFrame, ways: Sequence[str], peers: Sequence[str], alone: str = "") -> pd.DataFrame:
    """Return the fastest of these ways for each number of ranks and batch, for models measured at several.

    Added: `tokens_per_s` over all ranks; `peer_rate_text`, that of the fastest peer, as text; `efficiency_pct`, the
    time of the step without communication (the way `alone`) over that of the step.
    """
    steps = with_values(steps)
    steps = steps.assign(model=written(steps, MODEL), tokens_per_s=1e3 * steps["tokens"] / steps["median_ms"])
    found = steps[steps["way"].isin(ways)].sort_values("median_ms").drop_duplicates("case")
    found = found[found["model"].duplicated(keep=False)].sort_values(["model", "world_size", "batch_size_per_rank"])
    peer = steps[steps["way"].isin(peers)].sort_values("median_ms").drop_duplicates("case")
    is_unknown = peer["limited_by"].isna() & peer["profiled_ms"].notna()  # on a CPU no step is profiled
    limits = peer["limited_by"].astype(object).mask(is_unknown, WORDS.say("unknown"))
    peer["limit"] = ["" if limit == "gpu" or pd.isna(limit) else f" ({limit})" for limit in limits]
    # Markdown: `~` is a mark, not text that would be escaped.
    rates = map(Markdown, written(peer, "{status:mark}{tokens_per_s:count}{limit}"))
    peer_rates = dict(zip(peer["case"], rates, strict=True))
    without_ms = steps[steps["way"] == alone].set_index("case")["median_ms"]
    return found.assign(
        on=written(found, "{world_size} × {batch_size_per_rank}"),
        peer_rate_text=found["case"].map(peer_rates),
        efficiency_pct=100 * found["case"].map(without_ms) / found["median_ms"],
    )


def scaling_table(steps: pd.DataFrame, peer: str, further: str = "") -> Table:
    """Write steps from `fastest_by_ranks`: a row per model, number of ranks and batch per rank; further: columns."""
    rates = "median_ms tokens_per_s:count peer_rate_text:text efficiency_pct"
    names = f"model on way {rates} limited_by {further}"
    if steps["way"].nunique() == 1:
        names = names.replace(" way ", " ")
    ours = ", ".join(steps["way"].unique()) if steps["way"].nunique() == 1 else WORDS.say("fastest")
    return WORDS.table("scaling", steps, names, all_rows=False, only_filled=True, ours=ours, peer=peer)


def gathering_rates(collectives: pd.DataFrame) -> pd.DataFrame:
    """Return a row per backend and number of ranks: the highest bus bandwidth at which weights can be gathered.

    It is that of PyTorch's all-gather or, if that was not measured, of its all-reduce: a ring sends both as fast.
    """
    if collectives.empty:
        return pd.DataFrame(columns=["backend", "world_size", "collective", "busbw_gb_per_s"])
    gathers = collectives["collective"].isin(GATHERING) & collectives["impl"].eq("torch")
    sent = having(with_values(collectives[gathers]), "busbw_gb_per_s")
    sent = in_order(sent, ["collective", "busbw_gb_per_s"], {"collective": GATHERING})
    return sent.drop_duplicates(["backend", "world_size"], keep="last").sort_values("world_size")


def agreement(steps: pd.DataFrame, differences: Sequence[str]) -> pd.Series:
    """Say for each way whether its weights agree within rounding; None if they were not compared."""
    largest = steps[list(differences)].max(axis=1)
    words = (largest <= steps["weight_tolerance"]).map({True: "yes", False: "no"})
    return words.astype(object).where(largest.notna(), None)


def with_bytes(steps: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    """Add what the fullest rank holds in memory and what a rank sends, from the rows that measure it.

    state_bytes: parameters, gradients and optimizer state after a step; peak_bytes; sent_bytes; rank_bytes: the peak,
    or the state if no peak was measured (on a CPU).
    """
    at_end = rows["moment"].isna() | (rows["moment"] == "after_step") if "moment" in rows else True
    measured = rows[["case", "way", "sent_bytes"]].assign(
        state_bytes=rows["measured_bytes"].where(rows["kind"].isin(KINDS) & at_end),
        peak_bytes=rows["measured_bytes"].where(rows["kind"] == "peak"),
    )
    by_way = measured.groupby(["case", "way"])
    found = by_way[["state_bytes", "sent_bytes"]].sum(min_count=1).join(by_way["peak_bytes"].max())
    steps = steps.drop(columns=[*found], errors="ignore").join(found, on=["case", "way"])
    return steps.assign(rank_bytes=steps["peak_bytes"].fillna(steps["state_bytes"]))


def memory_chart(steps: pd.DataFrame, rows: pd.DataFrame) -> Chart:
    """Draw what the fullest rank holds at its peak, by kind."""
    kinds = rows[rows["kind"].isin(KINDS)].assign(name=rows["kind"].map(KINDS), gb=rows["measured_bytes"] / 1e9)
    rest = steps.assign(name="other", gb=(steps["peak_bytes"] - steps["state_bytes"]).clip(lower=0) / 1e9)
    order = {"case": steps["case"].unique(), "way": steps["way"].unique(), "name": [*KINDS.values(), "other"]}
    drawn = in_order(pd.concat([kinds, rest]), [*order], order)
    return WORDS.chart("memory", drawn, "stack", "gb", "way", "name", panel="case")


def answer(steps: pd.DataFrame, ours: Sequence[str], memory_column: str = "rank_bytes", peer: str = "") -> str:
    """Say how the fastest of our ways compares with the base and, if it has a time, with the way `peer`.

    memory_column: the column with the memory of a rank.
    """
    best = steps[steps["way"].isin(ours) & steps["ratio"].notna()].sort_values("median_ms").head(1)
    if best.empty:
        return say_which_have_results(steps)
    new, old = best.iloc[0], steps.loc[best["base"].iloc[0]]
    cost = Change.between("", "", old, new, memory_column)
    before, after = (step.replace(", ", " and ") for step in (cost.before, cost.after))
    sentence = WORDS.say("answer", before=before, after=after, old=old, new=new)
    peers = with_values(steps[steps["way"] == peer])
    if peers.empty:
        return sentence
    return sentence + " " + WORDS.say("beside_peer", peer=peers.iloc[0], than=judge(peers.iloc[0], new))


def say_which_have_results(steps: pd.DataFrame) -> str:
    """Say which ways have values, for a case in which nothing can be compared."""
    ways = ", ".join(with_values(steps)["way"]) or "none"
    return WORDS.say("only", case=steps["case"].iloc[0], ways=ways)


def changes(steps: pd.DataFrame, what: str, ways: Sequence[str], memory_column: str = "rank_bytes") -> list[Change]:
    """Return the fastest of these ways as a change from the base, if it is faster; what: a template with `{way}`."""
    found = steps[steps["way"].isin(ways) & (steps["verdict"] == FASTER)].sort_values("median_ms").head(1)
    return [
        Change.between(what.format(**row), row["case"], steps.loc[row["base"]], row, memory_column)
        for _, row in found.iterrows()
    ]


def phases(rows: pd.DataFrame) -> pd.DataFrame:
    """Return each way's phase times in one case, such as `backward_phase_ms`, by the GPU's clock if there is one.

    share_pct: the share of the step that is spent waiting for gradients after backward.
    """
    by_gpu = rows["clock"] == "cuda_events"
    timed = rows[by_gpu if by_gpu.any() else rows["clock"] == "host"].dropna(subset="median_ms")
    wide = timed.pivot_table(index="way", columns="phase", values="median_ms", sort=False)
    wide = wide.reindex(columns=["backward", "communication", "optimizer", TRAIN_STEP])
    return wide.add_suffix("_phase_ms").assign(share_pct=100 * wide["communication"] / wide[TRAIN_STEP])


def captures(rows: pd.DataFrame, steps: pd.DataFrame) -> pd.DataFrame:
    """Return captured steps with the timed ones (`timed_step_ms`); on GPUs, drop those that profiling slowed down."""
    captured = rows[rows["span_ms"].notna()]
    timed_ms = captured["way"].map(steps.set_index("way")["median_ms"])
    is_slowed = captured["backend"].eq("nccl") & slowed_by_profiler(captured["span_ms"], timed_ms)
    return captured.assign(timed_step_ms=timed_ms)[~is_slowed]


def lanes(captured: pd.DataFrame, kinds: Sequence[str]) -> Chart:
    """Draw captured steps: for each kind of work, how busy it is in each part of the step."""
    drawn = [
        {"way": row["way"], "kind": kind, "at_ms": row["span_ms"] * place / LANE_BINS, "busy_pct": part.mean()}
        for row in captured.to_dict("records")
        for kind in kinds
        if isinstance(busy := row.get(f"{kind}_busy_pct"), list)
        for place, part in enumerate(np.array_split(busy, LANE_BINS))
    ]
    rows = pd.DataFrame(drawn, columns=["way", "kind", "at_ms", "busy_pct"])
    values = {"lanes": ", ".join(rows["kind"].unique())}
    return WORDS.chart("capture", rows, "line", "at_ms", "busy_pct", "kind", panel="way", values=values)
