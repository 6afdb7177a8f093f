import pandas as pd
import pytest

from pipeline.stages.tensor_parallel.cell import IMPLS, Cell, Settings
from pipeline.stages.tensor_parallel.report import build

from ...records import derived
from ..frames import frame_of, gaps, shown, written
from .conftest import BLOCK

MS = {"none": 17.0, "tensor": 11.0, "sequence": 10.5, "fsdp": 10.0, "fsdp_tensor": 11.0, "context": 12.0}
STAGE = "tensor_parallel"


def cell_rows(cell, failing=()):
    """Return the rows of a cell as recorded on GPUs."""
    rate = {"measures": "rate", "status": "ok"}
    rows = [rate | {"rate": "matmul", "side": 8192, "samples_ms": [1.6, 1.6]}]
    rows.append(rate | {"rate": "allreduce_activations", "size_bytes": 84 * 10**6, "samples_ms": [0.3, 0.3]})
    rows.append(rate | {"rate": "allreduce_weights", "size_bytes": 210 * 10**6, "samples_ms": [0.7, 0.7]})
    for key in cell.row_keys():
        if key["impl"] in failing:
            rows.append({**key, "status": "oom", "reason": "CUDA out of memory"})
            continue
        samples = [MS[key["impl"]] * (1 + part / 1000) for part in range(10)]
        gpu = {"gpu_busy_ms": samples[0] * 0.95, "exposed_communication_ms": 1.5, "peak_bytes": 10**10}
        rows.append({**key, "status": "ok", "turns": 2, "samples_ms": samples, "loss": 1.2, **gpu})
        own = {"impl": key["impl"], "status": "ok"}
        rows += [
            {**own, "measures": "budget", "category": name, "work_ms": share * samples[0], "launches": 9}
            for name, share in (("matmul", 0.7), ("elementwise", 0.15), ("communication", 0.1), ("idle", 0.05))
        ]
        sent = {"collective": "allreduce", "calls": 4, "measured_bytes": 336 * 10**6}
        rows.append({**own, "measures": "traffic", **sent})
    return rows


def section_of(*cells, failing=()):
    tables = []
    for cell in cells:
        rows = pd.DataFrame(derived(cell, Settings(), cell_rows(cell, failing)))
        axes = {name: getattr(cell, name) for name in cell.__dataclass_fields__}
        tables.append(rows.assign(**axes, cards="a GPU", setting_unstable_rel_error=0.05))
    return build(frame_of(STAGE, pd.concat(tables).to_dict("records")), {})


def test_the_fastest_way_is_compared_with_one_process_and_each_way_with_its_formula():
    section = section_of(Cell())
    assert "FSDP takes 10" in section.answer
    assert "1.70×" in section.answer
    assert "(faster)" in section.answer
    row = shown(section_of(Cell()))["blocks"].rows.set_index("way").loc["tensor parallel"]
    flops = 3 * 2 * 16384 * (4 * 2560**2 + 3 * 2560 * 10240) + 3.5 * 2 * 8 * 2048**2 * 2560
    compute_ms = flops / 2 / (2 * 8192**3 / 1.6)
    sent_ms = 4 * 2 * 16384 * 2560 / (84e6 / 0.3)
    assert row["in_turn_ms_by_formula"] == pytest.approx(compute_ms + sent_ms)
    assert row["over_prediction"] == pytest.approx(row["median_ms"] / (compute_ms + sent_ms))
    assert row["overlapped_ms"] == pytest.approx(compute_ms)
    assert row["sent_bytes"] == 336e6
    assert row["predicted_bytes"] == 4 * 2 * 16384 * 2560
    drawn = shown(section_of(Cell()))["by_kind"].rows
    by_formula = drawn[drawn["way"] == "FSDP, by formula"]
    assert list(by_formula["category"]) == ["matmul", "communication"]
    assert {"elementwise", "idle"} <= {*drawn.loc[drawn["way"] == "FSDP", "category"]}


def test_blocks_steps_and_the_longest_context_have_their_own_tables():
    cells = [Cell(), Cell(precision="fp32"), Cell(what="step"), Cell(size="8B", batch_size=2, context_length=32768)]
    section = section_of(*cells)
    assert [section.answer.count(f"{what} of 2.7B, bf16") for what in ("One block", "A training step")] == [1, 1]
    tables = shown(section)
    assert {*tables["blocks"].rows["precision"]} == {"bf16", "fp32"}
    assert {*tables["blocks"].rows["context_length"]} == {2048}
    assert list(tables["long"].rows["context_length"].unique()) == [32768]
    assert {*tables["steps"].rows["impl"]} == {*IMPLS["step"]}


@pytest.mark.parametrize("failing", [("none",), ("tensor", "fsdp"), [impl for impl in MS if impl != "none"], [*MS]])
def test_ways_without_values_show_their_outcome(failing):
    section = section_of(Cell(), failing=failing)
    assert gaps(section) == []
    assert "OOM" in written(section) or len(failing) == len(MS)


def test_the_section_of_a_cpu_cell_leaves_out_what_only_gpus_measure(block_rows):
    axes = {name: getattr(BLOCK, name) for name in BLOCK.__dataclass_fields__}
    rows = [{**row, **axes, "cards": "a CPU", "setting_unstable_rel_error": 0.05} for row in block_rows]
    section = build(frame_of(STAGE, rows), {})
    parts = shown(section)
    assert "blocks" in parts
    assert "by_kind" not in parts
    assert "skipped" not in parts["blocks"].markdown()  # every row of that way was skipped
