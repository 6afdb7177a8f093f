import re

import pandas as pd
import pytest

from pipeline.report import ways

from .frames import failed, folded, repeated, timed

BASE = "DDP"
DOUBTED = {"fully_shard": [310.0, 397.0, 378.0], BASE: [324.0, 387.0, 324.0]}
HELD = {"parameters": 8e9, "gradients": 8e9, "optimizer_state": 16e9}


def steps(*rows):
    missing = dict.fromkeys(("peak_bytes", "profiled_ms", "exposed_communication_ms"))
    found = [{"case": "a cell", "clock": "host", "limited_by": "gpu", **missing, **row} for row in rows]
    frame = folded(*found, keys=("name", "case")).rename(columns={"name": "way"})
    return ways.whole_steps(frame, list(frame["way"].unique()), BASE)


def doubted():
    return [row for name, medians_ms in DOUBTED.items() for row in repeated(name, medians_ms)]


def order(steps, compared=()):
    return [of_case["case"].iloc[0] for of_case in ways.by_trust(steps, compared)]


def test_a_way_is_compared_only_with_the_base_of_its_own_cell():
    other = [failed(BASE, case="another"), timed("fully_shard", 50.0, case="another")]
    ratios = steps(timed(BASE, 100.0), timed("fully_shard", 50.0), *other).set_index(["case", "way"])["ratio"]
    assert ratios["a cell", "fully_shard"] == pytest.approx(2.0)
    assert pd.isna(ratios["another", "fully_shard"])


def test_a_host_limited_cell_comes_last_however_often_it_was_repeated():
    limited = [row | {"limited_by": "host", "case": "on the host"} for row in doubted()]
    assert order(steps(*limited, timed(BASE, 100.0), failed(BASE, case="failed"))) == ["a cell", "on the host"]


def test_stable_times_of_the_compared_ways_count_more_than_repeats():
    def case(name, unstable=None):
        return [
            timed(way, ms, case=name, status="unstable" if way == unstable else "ok")
            for way, ms in ((BASE, 100.0), ("b", 90.0), ("by matrix", 95.0))
        ]

    found = steps(*case("doubted", unstable="b"), *case("sound", unstable="by matrix"))
    assert order(found, [BASE, "b"]) == ["sound", "doubted"]
    assert order(found) == ["doubted", "sound"]  # a tie keeps the order
    repeated_often = [row | {"case": "often", "status": "unstable"} for row in doubted()]
    assert order(steps(*repeated_often, *case("once")), [BASE]) == ["once", "often"]
    without = steps(timed("by matrix", 9.0, case="without them"), *case("doubted"))
    assert order(without, [BASE]) == ["doubted", "without them"]


def test_the_table_shows_the_time_of_each_repeat_and_the_number_of_gpu_sets():
    table = ways.table("ways", steps(*[row | {"cards": f"GPU {row['repeat']}"} for row in doubted()]), BASE, "")
    assert table.rows.set_index("way").loc["fully_shard", "each_repeat"] == "310 / 397 / 378"
    assert "repeats: 3; sets of GPUs used: 3" in table.caption


@pytest.mark.parametrize(
    ("limits", "is_column"),
    [(("gpu", "host"), True), (("gpu", None), True), (("gpu", "gpu"), False), ((None, None), False)],
)
def test_limited_by_is_a_column_unless_it_is_the_same_for_all_and_empty_columns_are_left_out(limits, is_column):
    timed_steps = [timed(way, 90.0, limited_by=limit) for way, limit in zip((BASE, "ZeRO"), limits, strict=True)]
    table = ways.table("ways", steps(*timed_steps, failed("fully_shard", limited_by=None)), BASE, "peak_bytes")
    names = [column for _, column, _ in table.columns]
    assert (("limited_by" in names), "peak_bytes" in names) == (is_column, False)
    assert ("limited by: gpu" in table.caption) == (limits == ("gpu", "gpu"))
    assert "OOM" in table.markdown()


def test_scaling_has_our_fastest_way_for_models_with_several_ranks_or_batches():
    def case(size, world_size, **each_ms):
        cell = {"size": size, "precision": "bf16", "context_length": 100, "batch_size_per_rank": 2}
        cell |= {"case": f"{size} {world_size}", "world_size": world_size, "tokens": 200 * world_size}
        return [timed(name, ms, **cell) for name, ms in each_ms.items()]

    rows = case("xl", 2, none=10.0, mine=20.0, own=40.0, peer=80.0, slow=90.0)
    rows += case("xl", 4, none=10.0, mine=80.0, own=40.0, peer=20.0)
    found = ways.fastest_by_ranks(
        steps(*rows, *case("2.7B", 2, none=1.0, mine=1.0)), ["mine", "own"], ["peer", "slow"], "none"
    )
    shown = ["size", "world_size", "way", "tokens_per_s", "peer_rate_text", "efficiency_pct"]
    expected = [["xl", 2, "mine", 20_000, "5,000", 50], ["xl", 4, "own", 20_000, "40,000", 25]]
    assert found[shown].to_numpy().tolist() == expected
    limits = {8: {"limited_by": "host"}, 16: {"limited_by": None}, 32: {"limited_by": None, "profiled_ms": 9.0}}
    others = [row | limit for size, limit in limits.items() for row in case("xl", size, mine=20.0, peer=80.0)]
    shown = ways.fastest_by_ranks(steps(*rows, *others), ["mine"], ["peer"])["peer_rate_text"]
    assert shown.tolist() == ["5,000", "40,000", "20,000 (host)", "40,000", "80,000 (limit unknown)"]
    unstable = [row | {"status": "unstable"} for row in case("xl", 2, mine=20.0, peer=80.0)]
    shown = ways.scaling_table(ways.fastest_by_ranks(steps(*rows, *unstable), ["mine"], ["peer"]), "peer").markdown()
    assert ("~5,000" in shown, "~~" in shown) == (True, False)
    heads = ways.scaling_table(found, "peer").markdown()
    assert ("variant" in heads, "peer, tokens/s" in heads) == (True, True)
    assert "variant" not in ways.scaling_table(found.assign(way="mine"), "peer").markdown()


def test_weights_agree_only_within_what_rounding_allows():
    rows = pd.DataFrame({"ranks": [0.0, 0.0, None, 1.0], "ways": [0.0, 0.015, None, None], "weight_tolerance": 0.01})
    assert list(ways.agreement(rows, ["ranks", "ways"])) == ["yes", "no", None, "no"]


def counted(peak=40e9, case="a cell"):
    rows = [{"kind": kind, "measured_bytes": size} for kind, size in HELD.items()]
    rows += [{"kind": "peak", "measured_bytes": each and each - place} for place, each in enumerate((peak, peak))]
    rows += [{"collective": "allreduce", "sent_bytes": 8e9}]
    return pd.DataFrame(rows).assign(case=case, way=BASE)


@pytest.mark.parametrize(("peak", "of_rank"), [(40e9, 40e9), (None, 32e9)])
def test_the_memory_of_a_rank_is_its_peak_or_its_state_if_no_peak_was_measured(peak, of_rank):
    found = ways.with_bytes(steps(timed(BASE, 100.0)), counted(peak))
    assert found[["rank_bytes", "state_bytes", "sent_bytes"]].iloc[0].tolist() == [of_rank, 32e9, 8e9]
    drawn = ways.memory_chart(found, counted(peak)).drawn
    assert drawn["gb"].sum() == pytest.approx(of_rank / 1e9)
    assert {"parameters", "gradients", "optimizer"} <= set(drawn["name"])
    assert ways.with_bytes(steps(timed(BASE, 100.0)), counted(case="another"))["rank_bytes"].isna().all()


@pytest.mark.parametrize(("after_ms", "count"), [(50.0, 1), (99.0, 0)])
def test_only_a_faster_way_is_a_change_and_the_answer_gives_both_times_if_known(after_ms, count):
    found = steps(timed(BASE, 100.0), timed("fully_shard", after_ms)).assign(rank_bytes=20e9)
    changes = ways.changes(found, "shard ({way})", ["fully_shard"])
    shown = [(change.what, change.before, change.after) for change in changes]
    assert shown == [("shard (fully_shard)", "100 ms, 20.0 GB", "50.0 ms, 20.0 GB")] * count
    answer = ways.answer(found, ["fully_shard"])
    assert re.search(rf"{after_ms:.1f} ms and 20.0 GB with fully_shard, .*100 ms and 20.0 GB with DDP", answer)
    assert found["verdict"].dropna().item() in answer
    third = steps(timed(BASE, 100.0), timed("fully_shard", after_ms), timed("peer", 200.0)).assign(rank_bytes=20e9)
    shown = ways.answer(third, ["fully_shard"], peer="peer").removeprefix(answer)
    assert ("200 ms" in shown, f"{200 / after_ms:.2f}×" in shown) == (True, True)
    assert ways.answer(found, ["fully_shard"], peer="peer") == answer
    lacking = ways.answer(steps(failed(BASE), timed("fully_shard", 50.0)), ["fully_shard"])
    assert lacking.endswith("variants with results: fully_shard.")


def test_lanes_keep_the_share_of_time_in_which_each_kind_of_work_ran():
    lanes = {"a_busy_pct": [[100] * 200 + [0] * 200], "b_busy_pct": [[0] * 400]}
    captures = pd.DataFrame({"way": ["naive"], "span_ms": [200.0], **lanes})
    drawn = ways.lanes(captures, ("a", "b")).rows
    busy = drawn.groupby("kind")["busy_pct"].mean()
    assert (busy["a"], busy["b"]) == (pytest.approx(50.0), 0.0)
    assert drawn.loc[drawn["at_ms"] >= 100, "busy_pct"].max() == 0
    assert ways.lanes(captures.head(0), ("a", "b")).is_empty


def test_the_share_spent_waiting_is_of_the_step_by_the_same_clock():
    times = {"backward": 80.0, "communication": 30.0, "train_step": 200.0}
    by_gpu = [{"way": "naive", "phase": name, "clock": "cuda_events", "median_ms": ms} for name, ms in times.items()]
    by_host = {"way": "naive", "phase": "train_step", "clock": "host", "median_ms": 300.0}
    assert ways.phases(pd.DataFrame([*by_gpu, by_host])).loc["naive", "share_pct"] == pytest.approx(15.0)
