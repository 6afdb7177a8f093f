import pandas as pd
import pytest

from pipeline.report.versus import SAME
from pipeline.stages.allreduce.report import build

from ..section_parts import faults, parts
from .conftest import COSTS

LINK = {"ceilings": pd.DataFrame({"kind": ["copy", "to_peer"], "gb_per_s": [4000.0, 400.0]})}


@pytest.mark.parametrize("name", ["h200", "cluster", "laptop", "smoke"])
def test_the_section_is_whole_on_whatever_was_measured(make_rows, name, tmp_path):
    assert faults(build(make_rows(name), {}), tmp_path) == {}


def test_a_call_alone_stands_beside_the_same_call_back_to_back(make_rows):
    groups = parts(build(make_rows("h200"), {}))["groups"].rows
    groups = groups.dropna(subset="median_ms_least_burst")
    for row in groups.to_dict("records"):
        extra_ms = 1e3 * COSTS[row["backend"]][2]
        assert row["median_ms_least_single"] - row["median_ms_least_burst"] == pytest.approx(extra_ms, rel=0.2)


def test_single_calls_are_timed_by_the_host_for_its_launch_is_part_of_them(make_rows):
    rows = make_rows("h200")
    told = parts(build(rows, {}))["by_size"].rows
    own = rows[(rows["backend"] == "nccl") & (rows["world_size"] == 2) & (rows["timing"] == "single")]
    by_host = own[(own["clock"] == "host") & (own["size_bytes"] == 1e6)]["median_ms"].item()
    here = (told["backend"] == "nccl") & (told["ranks"] == "2 ranks") & (told["size"] == "1 MB")
    assert told.loc[here, "median_ms_alone"].item() == by_host


def test_the_cost_of_a_call_is_that_of_the_model_that_made_the_times(make_rows):
    groups = parts(build(make_rows("h200"), {}))["groups"].rows.dropna(subset="latency_us")
    expected = groups["backend"].map(lambda backend: 1e6 * COSTS[backend][0])
    assert groups["latency_us"].tolist() == pytest.approx(expected.tolist(), rel=0.2)


def test_ranks_of_several_nodes_are_a_row_of_their_own(make_rows):
    groups = parts(build(make_rows("cluster"), {}))["groups"].rows.set_index("ranks")
    assert (
        groups.loc["4 ranks of 2 nodes", "best_busbw_gb_per_s"]
        < 0.2 * groups.loc["4 ranks", "best_busbw_gb_per_s"].max()
    )


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
    for name in ("groups", "by_size"):
        assert any("| 8 | skipped" in line for line in found[name].markdown().splitlines())


def test_the_link_is_a_limit_of_nccl_alone(make_rows):
    found = parts(build(make_rows("h200"), LINK))
    assert [limit.value for limit in found["busbw_nccl"].limits] == [400.0]
    assert not found["busbw_gloo"].limits
    shares = found["groups"].rows.dropna(subset="of_link_pct")
    assert set(shares["backend"]) == {"nccl"}
    assert (shares["of_link_pct"] == shares["best_busbw_gb_per_s"] / 4).all()


def test_torch_is_held_against_nccl_in_place_at_both_ends_of_the_sizes(make_rows):
    rows = parts(build(make_rows("h200"), {}))["beside_nccl"].rows
    assert set(rows["size"]) == {"1 MB", "1000 MB"}
    assert len(rows) == 4
    assert set(rows["verdict"]) <= {SAME, "undecided"}
    assert (rows["placement_peer"] == "in_place").all()
