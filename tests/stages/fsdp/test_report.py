import pandas as pd
import pytest

from pipeline.report.versus import FASTER, SAME
from pipeline.stages.fsdp.report import OURS, TORCHS, build

from ..frames import frame_of, other, shown, step


def section(*rows):
    return build(frame_of("fsdp", rows), {})


def test_each_cell_is_compared_with_our_ddp_and_the_first_suggests_changes():
    ms = {"ddp": 500.0, "fsdp": 400.0, "torch_fsdp": 505.0}
    found = section(*(step(impl, each, size=size) for size in ("xl", "2.7B") for impl, each in ms.items()))
    for name in ("ways_1", "ways_2"):
        verdicts = shown(found)[name].rows.set_index("way")["verdict"]
        assert verdicts.dropna().to_dict() == {OURS: FASTER, TORCHS: SAME}
    assert [change.judged["ratio"] for change in found.changes] == [pytest.approx(500 / 400)]


def test_savings_are_relative_to_sharding_only_the_optimizer_state():
    sizes = {"ddp_sharded": 30e9, "fsdp": 20e9, "torch_fsdp": 15e9}
    rows = [step(impl, 100.0) for impl in sizes]
    rows += [other(impl, "memory", kind="peak", measured_bytes=size) for impl, size in sizes.items()]
    saved = shown(section(*rows))["saved"].rows.set_index("way")
    assert saved["saved_bytes"].to_dict() == {OURS: 10e9, TORCHS: 15e9}
    assert saved["less_times"].to_dict() == {OURS: 1.5, TORCHS: 2.0}


def test_scaling_is_compared_with_a_single_rank_and_the_formula():
    def on_ranks(world_size, batch, ours_ms):
        cell = {"world_size": world_size, "batch_size_per_rank": batch, "backend": "nccl", "setting_vocab_size": 1000}
        sent = other("fsdp", "traffic", sent_bytes=2e9, **cell)
        capture = other("fsdp", "capture", computation_ms=150.0, **cell)
        return [step("none", 100.0 * batch, **cell), step("fsdp", ours_ms, **cell), sent, capture]

    measured = [("nccl", "all_gather", 10.0), ("nccl", "all_reduce", 99.0), ("gloo", "all_gather", 99.0)]
    links = pd.DataFrame(measured, columns=["backend", "collective", "busbw_gb_per_s"])
    links = links.assign(status="ok", impl="torch")
    faster = links.assign(busbw_gb_per_s=200.0, impl="another")
    links = pd.concat([each.assign(world_size=ranks) for ranks in (2, 4) for each in (links, faster)])
    rows = [*on_ranks(2, 4, 500.0), *on_ranks(4, 2, 250.0), *on_ranks(4, 4, 320.0)]
    table = shown(build(frame_of("fsdp", rows), {"collectives": links}))["scaling"].rows
    assert table[["world_size", "batch_size_per_rank"]].to_numpy().tolist() == [[2, 4], [4, 2], [4, 4]]
    assert table["tokens_per_s"].tolist() == [16_384, 32_768, 51_200]
    assert table["efficiency_pct"].tolist() == [80, 80, 125]
    assert set(table["communication_ms"]) == {200.0}
    assert table["exposed_by_formula_ms"].tolist() == pytest.approx([50.0] * 3)
    assert "scaling" not in shown(section(*on_ranks(2, 4, 500.0)))


def test_the_capture_shows_when_each_way_gathers_and_how_much_of_it_is_exposed():
    lanes = {f"{name}_busy_pct": [50] * 80 for name in ("computation", "gather", "scatter", "waiting")}
    times = {"gather_ms": 20.0, "gather_exposed_ms": 5.0, "span_ms": 90.0}
    lanes |= {"each_gather_ms": [12.0, 8.0], "each_gather_exposed_ms": [5.0, 0.0]}
    rows = [step(impl, 100.0) for impl in ("fsdp", "fsdp_layers")]
    rows += [other(row["impl"], "capture", **lanes, **times) for row in rows]
    found = shown(section(*rows))
    assert found["captures"].rows[["exposed_pct", "timed_step_ms"]].to_numpy().tolist() == [[25.0, 100.0]]
    assert set(found["capture"].rows["kind"]) == {"computation", "gather", "scatter", "waiting"}
    assert set(found["capture"].rows["way"]) == {OURS}
    each = found["gathers"].rows.pivot(index="number", columns="kind", values="ms")
    assert each[["gather", "exposed"]].to_numpy().tolist() == [[12.0, 5.0], [8.0, 0.0]]
