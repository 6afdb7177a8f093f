import pandas as pd
import pytest

from pipeline.report.frame import fold
from pipeline.report.versus import UNDECIDED
from pipeline.stages.fsdp.report import DDP, OURS, TORCHS, build

from ...report.frames import repeated, timed
from ..section_parts import faults, parts

CELL = {"world_size": 2, "batch_size_per_rank": 4, "context_length": 1024, "precision": "bf16"}
KEYS = ["size", *CELL, "impl", "measures", "phase", "clock", "kind", "collective"]
# What two machines gave: the repeats of one cell, and a single process of another.
REPEATS = {"torch_fsdp": [310.0, 397.0, 378.0], "ddp": [324.0, 387.0, 324.0]}
SINGLE = {"torch_fsdp": 348.5, "ddp": 387.2}


def steps(h200, *rows):
    """Return a frame with the columns of a real one."""
    told = {**CELL, "measures": "time", "clock": "host", "limited_by": "gpu"}
    given = pd.DataFrame([{"impl": row["name"], **told, **row} for row in rows])
    return fold(given.reindex(columns=list(dict.fromkeys([*h200.drop(columns="repeats"), *given]))), KEYS)


@pytest.mark.parametrize("name", ["h200", "small_gpu", "smoke"])
def test_the_section_is_whole_on_whatever_was_measured(request, name, tmp_path):
    section = build(request.getfixturevalue(name), {})
    assert faults(section, tmp_path) == {}


def test_ways_whose_repeats_contradict_each_other_stay_undecided_in_every_cell(h200):
    rows = [row for impl, medians in REPEATS.items() for row in repeated(impl, medians, size="xl")]
    rows += [timed(impl, median_ms, size="2.7B") for impl, median_ms in SINGLE.items()]
    section = build(steps(h200, *rows), {})
    found = parts(section)
    for name in ("ways_1", "ways_2"):
        verdicts = found[name].rows.set_index("way")["verdict"]
        assert verdicts[TORCHS] == UNDECIDED
        assert pd.isna(verdicts[DDP])
    assert section.changes == []


def test_the_answer_tells_of_the_repeated_cell_and_not_of_one_that_the_host_limits(h200):
    sound = [row for impl in ("ddp", "fsdp") for row in repeated(impl, [300.0, 301.0], size="xl")]
    single = [timed(impl, 500.0, size="2.7B") for impl in ("ddp", "fsdp")]
    assert build(steps(h200, *single, *sound), {}).answer.startswith("xl")
    limited = [row | {"limited_by": "host"} for row in sound]
    assert build(steps(h200, *single, *limited), {}).answer.startswith("2.7B")


def test_what_is_saved_is_counted_from_the_optimizers_state_alone_shared_out(h200):
    rows = parts(build(h200, {}))["saved"].rows
    assert list(rows["way"].unique()) == [OURS, TORCHS]
    assert (rows["before"] - rows["rank_bytes"]).tolist() == rows["saved"].tolist()
    peaks = (
        h200[(h200["kind"] == "peak") & (h200["impl"] == "ddp_sharded")].groupby("precision")["measured_bytes"].max()
    )
    assert (rows["before"] == rows["precision"].map(peaks)).all()


def test_a_way_that_does_not_fit_shows_its_outcome_and_nothing_is_compared_with_it(small_gpu):
    table = parts(build(small_gpu, {}))["ways_1"]
    [ddp] = [line for line in table.markdown().splitlines() if line.startswith(f"| {DDP} |")]
    assert "OOM" in ddp
    assert table.rows["verdict"].isna().all()


def test_the_capture_shows_when_each_way_gathers_and_how_much_of_it_is_exposed(h200):
    found = parts(build(h200, {}))
    captures = found["captures"].rows
    assert (captures["exposed_pct"] == 100 * captures["gather_exposed_ms"] / captures["gather_ms"]).all()
    drawn = found["capture"].rows
    assert set(drawn["kind"]) == {"computation", "gather", "scatter", "waiting"}
    assert set(drawn["way"]) == {OURS, TORCHS}
