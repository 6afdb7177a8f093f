import pandas as pd
import pytest

from pipeline.stages.collectives.cell import COLLECTIVES
from pipeline.stages.collectives.report import build

from ..frames import gaps
from ..frames import shown as parts
from .conftest import COSTS

LINK = {"ceilings": pd.DataFrame({"kind": ["copy", "to_peer"], "gb_per_s": [4000.0, 400.0]})}


@pytest.mark.parametrize("name", ["h200", "node", "cluster", "laptop", "smoke"])
def test_the_section_is_whole_on_whatever_was_measured(make_rows, name):
    assert gaps(build(make_rows(name), {})) == []


def test_a_call_alone_stands_beside_the_same_call_back_to_back_and_in_a_graph(make_rows):
    groups = parts(build(make_rows("h200"), {}))["groups"].rows.dropna(subset="median_ms_burst")
    assert len(groups) == 5
    for row in groups.to_dict("records"):
        extra_ms = 1e3 * COSTS[row["backend"]][2]
        assert row["median_ms_single"] - row["median_ms_burst"] == pytest.approx(extra_ms, rel=0.2)
        if row["backend"] == "nccl":
            assert row["median_ms_graph"] == pytest.approx(0.8 * row["median_ms_burst"], rel=0.1)


def test_every_collective_and_type_has_a_row_and_the_chart_a_line_a_collective(make_rows):
    found = parts(build(make_rows("node"), {}))
    assert len(found["groups"].markdown().splitlines()[4:]) == 12
    chart = found["busbw"]
    assert set(chart.rows["what"]) == {each.replace("_", "-") for each in COLLECTIVES}
    assert set(chart.rows["dtype"]) == {"fp32"}


def test_machines_are_compared_by_the_best_bus_bandwidth_of_each_collective(make_rows):
    section = build(make_rows("h200"), {})
    best = parts(section)["groups"].rows["busbw_gb_per_s_best"].dropna().tolist()
    assert [each.value for each in section.compared] == best
    assert len({each.what for each in section.compared}) == len(best)


def test_a_size_that_does_not_fit_says_so_in_its_place(make_rows):
    rows = make_rows("h200")
    gone = (rows["backend"] == "nccl") & (rows["world_size"] == 4) & (rows["size_bytes"] == 1e9)
    rows.loc[gone, ["median_ms", "busbw_gb_per_s", "algbw_gb_per_s"]] = float("nan")
    rows["status"] = rows["status"].mask(gone, "oom")
    [line] = [line for line in parts(build(rows, {}))["by_size"].markdown().splitlines() if "| nccl | 4 |" in line]
    assert line.count("OOM") == 1
    assert line.endswith("OOM |")


def test_single_calls_are_timed_by_the_host_for_its_launch_is_part_of_them(make_rows):
    rows = make_rows("h200")
    told = parts(build(rows, {}))["by_size"].rows
    own = rows[(rows["backend"] == "nccl") & (rows["world_size"] == 2) & (rows["timing"] == "single")]
    by_host = own[(own["clock"] == "host") & (own["size_bytes"] == 1e6)]["median_ms"].item()
    here = (told["backend"] == "nccl") & (told["ranks"] == "2 ranks") & (told["size_bytes"] == 1e6)
    assert told.loc[here, "median_ms_alone"].item() == by_host


def test_ranks_of_several_nodes_are_a_row_of_their_own(make_rows):
    groups = parts(build(make_rows("cluster"), {}))["groups"].rows.set_index("ranks")
    best = groups["busbw_gb_per_s_best"]
    assert best["4 ranks of 2 nodes"] < 0.2 * best["4 ranks"].max()


def test_an_unstable_time_is_marked_in_its_own_column_alone(make_rows):
    rows = make_rows("h200")
    first = (rows["timing"] == "single") & (rows["size_bytes"] == 1e6)
    rows["status"] = rows["status"].mask(first, "unstable")
    lines = parts(build(rows, {}))["groups"].markdown().splitlines()[4:]
    measured = [line for line in lines if "skipped" not in line]
    assert len(measured) == 5
    assert all(line.count("~") == 1 for line in measured)


def test_what_was_skipped_is_named(make_rows):
    found = parts(build(make_rows("h200"), {}))
    assert any("| 8 | fp32 | skipped" in line for line in found["groups"].markdown().splitlines())
    assert set(found["by_size"].rows["world_size"]) < set(found["groups"].rows["world_size"])


def test_the_link_is_a_limit_of_nccl_alone(make_rows):
    found = parts(build(make_rows("h200"), LINK))
    assert [limit.value for limit in found["busbw"].limits] == [400.0]
    assert not parts(build(make_rows("laptop"), LINK))["busbw"].limits
    shares = found["groups"].rows.dropna(subset="of_link_pct")
    assert set(shares["backend"]) == {"nccl"}
    assert (shares["of_link_pct"] == shares["busbw_gb_per_s_best"] / 4).all()
