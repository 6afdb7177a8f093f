import pandas as pd
import pytest

from pipeline.stages.collectives.cell import COLLECTIVES
from pipeline.stages.collectives.report import build

from ..frames import gaps
from ..frames import shown as parts
from ..published import sound

LINK = {"ceilings": pd.DataFrame({"kind": ["copy", "to_peer"], "gb_per_s": [4000.0, 400.0]})}


def select(rows, **columns):
    for name, value in {"impl": "torch", **columns}.items():
        rows = rows[rows[name] == value]
    return rows


@pytest.fixture
def rows():
    return select(sound("collectives"), collective="all_reduce", dtype="fp32")


def groups(rows, other_stages=None):
    return parts(build(rows, other_stages or {}))["groups"]


def test_single_calls_are_shown_next_to_bursts_and_graphs(rows):
    graphs = select(rows, timing="burst", backend="nccl", size_bytes=rows["size_bytes"].min()).assign(timing="graph")
    without = rows[rows["timing"] != "graph"]
    rows = pd.concat([without, graphs.assign(median_ms=0.8 * graphs["median_ms"])], ignore_index=True)
    section = build(rows, {})
    found = parts(section)
    timed, by_size = found["groups"].rows.dropna(subset="median_ms_burst"), found["by_size"].rows
    assert [each.value for each in section.compared] == timed["busbw_gb_per_s_best"].tolist()
    assert len({each.what for each in section.compared}) == len(timed) > 2
    for row in timed.to_dict("records"):
        cell = {name: row[name] for name in ("backend", "world_size", "size_bytes")}
        single = select(rows, **cell, timing="single", clock="host")["median_ms"].item()
        assert row["median_ms_single"] == select(by_size, **cell)["median_ms_alone"].item() == single
        assert row["median_ms_burst"] == select(rows, **cell, timing="burst")["median_ms"].item()
        if row["backend"] == "nccl":
            assert row["median_ms_graph"] == 0.8 * row["median_ms_burst"]


def test_small_calls_use_the_smallest_size_that_all_cells_share(rows):
    four = select(rows, backend="nccl", world_size=4)
    smaller = select(four, size_bytes=four["size_bytes"].min()).assign(size_bytes=8, median_ms=0.001)
    wider, own = groups(pd.concat([rows, smaller], ignore_index=True)), groups(rows)
    assert wider.caption == own.caption
    assert [head for head, _, _ in wider.columns] == [head for head, _, _ in own.columns]
    assert wider.rows["median_ms_burst"].tolist() == own.rows["median_ms_burst"].tolist()


def test_the_answer_is_about_all_reduce_if_it_was_measured(rows):
    faster = select(rows, backend="nccl", world_size=4).assign(collective="broadcast", busbw_gb_per_s=9e9)
    assert build(pd.concat([rows, faster], ignore_index=True), {}).answer == build(rows, {}).answer
    assert "broadcast" in build(faster, {}).answer


def test_every_collective_and_dtype_has_a_row_and_each_collective_a_chart_line(rows):
    four, types = select(rows, backend="nccl", world_size=4), ("fp32", "bf16")
    node = pd.concat([four.assign(collective=name, dtype=dtype) for dtype in types for name in COLLECTIVES])
    found = parts(build(node.reset_index(drop=True), {}))
    assert len(found["groups"].markdown().splitlines()[4:]) == 12
    chart = found["busbw"]
    assert set(chart.rows["what"]) == {each.replace("_", "-") for each in COLLECTIVES}
    assert set(chart.rows["dtype"]) == {"fp32"}
    fewer = node[(node["dtype"] == "bf16") | (node["collective"] == "all_reduce")].reset_index(drop=True)
    assert set(parts(build(fewer, {}))["busbw"].rows["dtype"]) == {"bf16"}
    two = fewer.assign(world_size=2)  # in both types alike
    listed = groups(pd.concat([fewer, two, two.assign(dtype="fp32")], ignore_index=True)).rows
    assert listed["dtype"].tolist() == sorted(listed["dtype"])  # bf16, which all ranks have, before fp32
    assert listed["world_size"].tolist()[: 2 * len(COLLECTIVES)] == [4] * len(COLLECTIVES) + [2] * len(COLLECTIVES)


def test_a_size_that_does_not_fit_shows_oom_and_skipped_cells_are_left_out(rows):
    is_four = (rows["backend"] == "nccl") & (rows["world_size"] == 4)
    gone = is_four & (rows["size_bytes"] == rows["size_bytes"].max())
    skipped = (rows["backend"] == "gloo") & (rows["world_size"] == 6)
    rows.loc[gone | skipped, ["median_ms", "busbw_gb_per_s", "algbw_gb_per_s"]] = float("nan")
    rows["status"] = rows["status"].mask(gone, "oom").mask(skipped, "skipped")
    found = parts(build(rows, {}))
    [line] = [line for line in found["by_size"].markdown().splitlines() if "| nccl | 4 |" in line]
    assert (line.count("OOM"), line.endswith("OOM |")) == (1, True)
    assert found["groups"].rows.query("backend == 'gloo' and world_size == 6").empty
    assert 6 not in set(found["by_size"].rows["world_size"])


def test_ranks_on_several_nodes_have_their_own_row(rows):
    apart = select(rows, backend="nccl", world_size=4).assign(nodes=2)
    apart["busbw_gb_per_s"] /= 10
    found = build(pd.concat([rows, apart], ignore_index=True), {})
    assert gaps(found) == []
    best = parts(found)["groups"].rows.set_index("ranks")["busbw_gb_per_s_best"]
    assert best["4 ranks of 2 nodes"] < 0.2 * best["4 ranks"].max()


def test_an_unstable_time_is_marked_only_in_its_own_column(rows):
    first = (rows["timing"] == "single") & (rows["size_bytes"] == rows["size_bytes"].min())
    rows["status"] = rows["status"].mask(first, "unstable")
    lines = [line for line in groups(rows).markdown().splitlines()[4:] if "skipped" not in line]
    assert [line.count("~") for line in lines] == [1] * len(lines) != []


def test_the_link_rate_is_a_limit_only_for_nccl(rows):
    assert [limit.value for limit in parts(build(rows, LINK))["busbw"].limits] == [400.0]
    assert not parts(build(sound("collectives", "laptop"), LINK))["busbw"].limits
    shares = groups(rows, LINK).rows.dropna(subset="of_link_pct")
    assert set(shares["backend"]) == {"nccl"}
    assert (shares["of_link_pct"] == shares["busbw_gb_per_s_best"] / 4).all()
