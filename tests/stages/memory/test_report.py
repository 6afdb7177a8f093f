from dataclasses import asdict
from itertools import product

import pytest

from pipeline.formulas.activations import block_bytes, residual_stream_bytes
from pipeline.formulas.checkpointing import KINDS, blocks_run_again
from pipeline.formulas.peak_memory import predict_peaks
from pipeline.stages.memory.cell import Cell, Settings
from pipeline.stages.memory.report import build

from ..frames import failed, frame_of, shown, timed

BF16 = {"precision": "bf16", "context_length": 1024}
SETTINGS = {f"setting_{name}": getattr(Settings, name) for name in ("batch_size", "vocab_size")}
WORKSPACE = 64 * 2**20


def cell_of(card="1", **varied):
    """Return the rows of a cell as an H200 could leave them, of the predictions and a workspace on top."""
    cell = Cell(**varied)
    work = cell.workload(Settings.vocab_size, Settings.batch_size, "cuda")
    shared = asdict(cell) | SETTINGS | {"status": "ok", "device_type": "cuda", "cards": card}
    rows = [
        {"kind": "peak", "step": step, "phase": phase, "peak_bytes": moment.total_bytes + WORKSPACE}
        | {f"{name}_bytes": size for name, size in moment.bytes_by_category.items()}
        | {"other_bytes": moment.bytes_by_category["other"] + WORKSPACE}
        for step in (1, 2)
        for phase, moment in predict_peaks(work, cell.mode, first_step=step == 1).items()
    ]
    for category, sizes in (("parameters", [0, 10**10, 10**10]), ("activations", [0, 2 * 10**10, 0])):
        rows.append({"kind": "timeline", "category": category, "events": [0, 150, 290], "active_bytes": sizes})
    rows.append({"kind": "residual", "size_bytes": residual_stream_bytes(work), "count": 64})
    rows += [
        {"kind": "largest", "rank": rank, "size_bytes": 10**8, "count": 3, "category": "parameters", "code": "x"}
        | {"location": f"model/transformer.py:9 __init__, called by {rank}"}
        for rank in (1, 2)
    ]
    if cell.mode == "train_step":
        sums = {"saved_bytes": block_bytes(work), "gradients_bytes": 10**6, "input_gradient_bytes": 10**5}
        rows.append({"kind": "block"} | sums)
        tensor = {"kind": "block_saved", "size_bytes": 84 * 10**6, "operation": "Silu.self", "dtype": "bfloat16"}
        rows += [tensor | {"rank": rank, "module": f"part_{rank}", "shape": [4, 8]} for rank in range(1, 8)]
        slower = 1.3 if cell.checkpoint_every else 1.0
        time_ms = cell.context_length * slower * (0.8 if cell.attention == "flash" else 1)
        rows.append(timed(time_ms) | {"kind": "time"})
    return [row | shared for row in rows]


def out_of_memory(**varied):
    return [failed(kind="peak", **asdict(Cell(**varied)), **SETTINGS)]


def section(*cells):
    return build(frame_of("memory", [row for cell in cells for row in cell]), {})


def test_a_peak_and_its_timeline_are_made_up_of_their_kinds():
    cell = cell_of(**BF16)
    first, last = (max(row["peak_bytes"] for row in cell if row.get("step") == step) for step in (1, 2))
    assert last != first
    found = section(cell)
    assert 1e9 * shown(found)["composition"].drawn["gb"].sum() == pytest.approx(last)
    assert f"peaks at {last / 1e9:.1f} GB" in found.answer
    drawn = shown(section(cell_of(**BF16)))["timelines"].drawn
    by_kind = drawn.pivot(index="events", columns="category", values="gb")
    assert by_kind["total"].tolist() == by_kind.drop(columns="total").sum(axis=1).tolist()
    assert by_kind["total"].max() == 30
    cells = [cell_of(**BF16, mode=mode) for mode in ("inference", "forward", "train_step")]
    found = shown(section(*cells, cell_of(precision="bf16", context_length=128)))
    assert found["timelines"].drawn["setting"].nunique() == 4


@pytest.mark.parametrize(("card", "gpus"), [("1", 1), ("2", 2)])
def test_where_plain_attention_does_not_fit_steps_are_compared_with_the_first_that_does(card, gpus):
    fits, flash = cell_of(**BF16, checkpoint_every=1), cell_of(card, **BF16, attention="flash")
    found = section(out_of_memory(**BF16), fits, flash)
    table = shown(found)["variants"]
    assert "OOM" in table.markdown().splitlines()[4]
    rows = table.rows.set_index("with_attention")
    assert list(rows["verdict"].fillna("")) == ["", "", "faster"]
    assert list(rows["gpus"].fillna("")) == ["", "1", str(gpus)]
    [change] = found.changes
    assert change.judged["ratio"] == pytest.approx(1.3 / 0.8)
    assert ("GPU" in change.where) == (gpus == 2)
    assert section(cell_of(**BF16), flash).changes == []  # of flash attention alone the levers tell


def test_peaks_and_residual_streams_of_both_precisions_stand_beside_the_formula_and_what_did_not_fit_is_told():
    found = shown(section(cell_of(**BF16), cell_of(context_length=1024), out_of_memory(context_length=2048)))
    residual, table = found["residual"].rows, found["peaks"]
    assert residual["by_formula_mib"].tolist() == residual["recorded_mib"].tolist() == [4 * 1024 * 2560 * 4 / 2**20] * 2
    assert table.rows["precision"].tolist() == ["fp32", "fp32", "bf16"]
    assert table.markdown().count("OOM") == 1
    measured = table.rows.dropna(subset="peak_bytes")
    assert measured["by_formula_bytes"].tolist() == pytest.approx(measured["peak_bytes"].tolist(), rel=0.01)


def test_allocations_of_one_line_count_together_and_a_block_tells_its_largest_tensors_and_sums():
    found = shown(section(cell_of(**BF16)))
    assert found["largest"].rows["how_many"].tolist() == [6]
    block = found["block"].rows.set_index("part")["cell"]
    assert len(block) == 4 + 3
    assert block["largest, 4"] == "84.0 MB: part_4 Silu.self, bfloat16 [4, 8]"
    assert block["its gradients"] == "1.00 MB"


def test_checkpoints_by_depth_tell_what_runs_again_and_what_they_lower():
    deep = {"precision": "bf16", "size": "small", "context_length": 4096, "attention": "flash", "num_layers": 16}
    cells = [cell_of(**deep), *(cell_of(**deep, checkpoint_every=1, checkpointing=kind) for kind in KINDS)]
    rows = shown(section(*cells, cell_of(**BF16)))["depth"].rows.set_index("checkpoints")
    assert rows["again"].tolist() == [0, *(blocks_run_again(16, 1, kind) for kind in ("segments", "recursive"))]
    assert list(rows.index) == ["none", "each block", "each block, recursive"]
    assert rows["most_activations_bytes"].is_monotonic_decreasing
    assert (rows["most_activations_bytes"] > 0).all()
    assert rows["verdict"].fillna("").tolist() == ["", "slower", "slower"]


def test_steps_are_those_of_the_longest_context_that_has_several_and_the_update_is_no_part_of_their_peak():
    cells = [
        cell_of(precision="bf16", context_length=context, checkpoint_every=every)
        for context, every in product((512, 2048), (0, 1, 4))
    ]
    rows = shown(section(*cells))["variants"].rows
    assert rows[["context_length", "checkpoint_every"]].to_numpy().tolist() == [[2048, 0], [2048, 1], [2048, 4]]
    assert rows["verdict"].fillna("").tolist() == ["", "slower", "slower"]
    assert rows["before_update_bytes"].iloc[1] < rows["peak_bytes"].iloc[1]
    # Of another precision where the one that leads has but one.
    cells = [cell_of(context_length=1024, attention=attention) for attention in ("eager", "flash")]
    assert set(shown(section(*cells, cell_of(**BF16)))["variants"].rows["precision"]) == {"fp32"}


def test_steps_of_a_chosen_number_of_blocks_speak_only_where_nothing_else_does():
    deep = cell_of(precision="bf16", size="small", context_length=4096, attention="flash", num_layers=4)
    assert "small" in section(deep).answer
    assert "2.7B" in section(deep, cell_of(**BF16)).answer
