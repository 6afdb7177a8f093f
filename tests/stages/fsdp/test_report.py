import pandas as pd
import pytest

from pipeline.report.versus import UNDECIDED
from pipeline.stages.fsdp.report import DDP, OURS, TORCHS, build

from ..frames import failed, frame_of, shown, step

# What two machines gave: the repeats of one cell, and a single process of another.
REPEATS = {"torch_fsdp": [310.0, 397.0, 378.0], "ddp": [324.0, 387.0, 324.0]}
SINGLE = {"torch_fsdp": 348.5, "ddp": 387.2}
TIMELESS = dict.fromkeys(("median_ms", "samples_ms", "phase", "clock", "q1_ms", "q3_ms"))


def repeated(impl, medians_ms, **columns):
    return [step(impl, ms, repeat=number, **columns) for number, ms in enumerate(medians_ms, 1)]


def peak(impl, size_bytes):
    return step(impl, 1.0) | TIMELESS | {"measures": "memory", "kind": "peak", "measured_bytes": size_bytes}


def section(*rows):
    return build(frame_of("fsdp", rows), {})


def test_ways_whose_repeats_contradict_each_other_stay_undecided_in_every_cell():
    rows = [row for impl, medians in REPEATS.items() for row in repeated(impl, medians)]
    found = section(*rows, *(step(impl, ms, size="2.7B") for impl, ms in SINGLE.items()))
    for name in ("ways_1", "ways_2"):
        verdicts = shown(found)[name].rows.set_index("way")["verdict"]
        assert verdicts[TORCHS] == UNDECIDED
        assert pd.isna(verdicts[DDP])
    assert found.changes == []


def test_the_answer_tells_of_the_repeated_cell_and_not_of_one_that_the_host_limits():
    sound = [row for impl in ("ddp", "fsdp") for row in repeated(impl, [300.0, 301.0])]
    single = [step(impl, 500.0, size="2.7B") for impl in ("ddp", "fsdp")]
    assert section(*single, *sound).answer.startswith("xl")
    assert section(*single, *(row | {"limited_by": "host"} for row in sound)).answer.startswith("2.7B")


def test_what_is_saved_is_counted_from_the_optimizers_state_alone_shared_out():
    sizes = {"ddp_sharded": 30e9, "fsdp": 20e9, "torch_fsdp": 15e9}
    rows = [step(impl, 100.0) for impl in sizes] + [peak(impl, size) for impl, size in sizes.items()]
    saved = shown(section(*rows))["saved"].rows.set_index("way")
    assert saved["saved_bytes"].to_dict() == {OURS: 10e9, TORCHS: 15e9}
    assert saved["less_times"].to_dict() == {OURS: 1.5, TORCHS: 2.0}


def test_scaling_is_told_beside_one_rank_alone_and_the_formula():
    def on_ranks(world_size, batch, ours_ms):
        cell = {"world_size": world_size, "batch_size_per_rank": batch, "backend": "nccl", "setting_vocab_size": 1000}
        sent = step("fsdp", 1.0, **cell) | TIMELESS | {"measures": "traffic", "sent_bytes": 2e9}
        capture = step("fsdp", 1.0, **cell) | TIMELESS | {"measures": "capture", "computation_ms": 150.0}
        return [step("none", 100.0 * batch, **cell), step("fsdp", ours_ms, **cell), sent, capture]

    links = pd.DataFrame({"backend": ["nccl", "gloo"], "status": "ok", "busbw_gb_per_s": [10.0, 99.0]})
    rows = [*on_ranks(2, 4, 500.0), *on_ranks(4, 2, 250.0), *on_ranks(4, 4, 320.0)]
    table = shown(build(frame_of("fsdp", rows), {"collectives": links}))["scaling"].rows
    assert table[["world_size", "batch_size_per_rank"]].to_numpy().tolist() == [[2, 4], [4, 2], [4, 4]]
    assert table["tokens_per_s"].tolist() == [16_384, 32_768, 51_200]
    assert table["efficiency_pct"].tolist() == [80, 80, 125]
    assert set(table["communication_ms"]) == {200.0}
    assert table["exposed_by_formula_ms"].tolist() == pytest.approx([50.0] * 3)
    assert "scaling" not in shown(section(*on_ranks(2, 4, 500.0)))


def test_a_way_that_does_not_fit_shows_its_outcome_and_nothing_is_compared_with_it():
    ddp = failed(**{**step("ddp", 1.0), **TIMELESS, "status": "oom", "phase": "train_step", "clock": "host"})
    table = shown(section(ddp, step("fsdp", 100.0)))["ways_1"]
    [line] = [line for line in table.markdown().splitlines() if line.startswith(f"| {DDP} |")]
    assert "OOM" in line
    assert table.rows["verdict"].isna().all()


def test_the_capture_shows_when_each_way_gathers_and_how_much_of_it_is_exposed():
    lanes = {f"{name}_busy_pct": [50] * 80 for name in ("computation", "gather", "scatter", "waiting")}
    times = {"gather_ms": 20.0, "gather_exposed_ms": 5.0, "span_ms": 90.0}
    lanes |= {"each_gather_ms": [12.0, 8.0], "each_gather_exposed_ms": [5.0, 0.0]}
    rows = [
        row
        for impl in ("fsdp", "fsdp_layers")
        for row in (step(impl, 100.0), step(impl, 1.0) | TIMELESS | lanes | times | {"measures": "capture"})
    ]
    found = shown(section(*rows))
    assert found["captures"].rows["exposed_pct"].tolist() == [25.0]
    assert found["captures"].rows["timed_step_ms"].tolist() == [100.0]
    assert set(found["capture"].rows["kind"]) == {"computation", "gather", "scatter", "waiting"}
    assert set(found["capture"].rows["way"]) == {OURS}
    each = found["gathers"].rows
    assert each.pivot(index="number", columns="kind", values="ms").to_dict("index") == {
        1: {"gather": 12.0, "exposed": 5.0},
        2: {"gather": 8.0, "exposed": 0.0},
    }
