import pandas as pd
import pytest

from pipeline.report import phases


def test_lanes_keep_the_share_in_which_each_kind_of_work_ran():
    captures = pd.DataFrame({"way": ["naive"], "a_busy_pct": [[100] * 200 + [0] * 200], "b_busy_pct": [[0] * 400]})
    drawn = phases.lanes("capture", "", captures, ("a", "b")).rows
    busy = drawn.groupby("kind")["busy_pct"].mean()
    assert (busy["a"], busy["b"]) == (pytest.approx(50.0), 0.0)
    assert drawn.loc[drawn["at_pct"] < 50, "busy_pct"].max() == 100
    assert phases.lanes("capture", "", captures.head(0), ("a", "b")).is_empty


def test_the_share_of_the_wait_is_of_the_same_clocks_step():
    shared = {"case": "a cell", "way": "naive"}
    times = {"forward": 40.0, "backward": 80.0, "communication": 30.0, "optimizer": 50.0, "train_step": 200.0}
    by_gpu = [{**shared, "phase": name, "clock": "cuda_events", "median_ms": ms} for name, ms in times.items()]
    by_host = {**shared, "phase": "train_step", "clock": "host", "median_ms": 300.0}
    [row] = phases.phases(pd.DataFrame([*by_gpu, by_host])).rows.to_dict("records")
    assert (row["train_step"], row["share_pct"]) == (200.0, pytest.approx(15.0))
