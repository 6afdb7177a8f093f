import pytest

from pipeline.report.versus import FASTER, UNDECIDED
from pipeline.stages.step8b.cell import FUSIONS
from pipeline.stages.step8b.report import build

from ..frames import frame_of, shown, step

STEP_MS = {"torch_compiled": 6000.0, "ours": 4700.0, "ours_fully_shard": 4750.0, "torch_eager": 6200.0}
CELL = {"size": "8B", "context_length": 32768, "impls": "a+b", "setting_checked_layers": 2}
CELL |= {"setting_checked_context": 4096, "setting_fusion_steps": 1}
TIMELESS = dict.fromkeys(("median_ms", "samples_ms", "phase", "clock", "q1_ms", "q3_ms"))


def rows_of(impl, median_ms, **columns):
    cell = {**CELL, **columns}
    other = step(impl, 1.0, **cell) | TIMELESS
    fusions = [
        other | {"measures": "fusion", "fusion": name, "step_ms": 5000.0 - 100 * place}
        for place, name in enumerate(FUSIONS if impl == "ours" else [])
    ]
    return [
        step(impl, median_ms, model_tflops_per_s=400.0, n=3, tokens_per_s=1.0, **cell),
        *(
            other | {"measures": "budget", "category": name, "work_ms": share * median_ms, "launches": 1}
            for name, share in (("matmul", 0.6), ("attention", 0.4))
        ),
        other | {"measures": "descent", "losses": [12.0, 9.0, 7.5]},
        other | {"measures": "check", "loss_error": 1e-6, "gradient_error": 0.005, "worst_gradient_error": 0.01},
        *fusions,
    ]


def section(**steps_ms):
    small = rows_of("ours", 10.0, size="tiny", context_length=64) + rows_of("torch_eager", 5.0, size="tiny")
    return build(frame_of("step8b", [row for impl, ms in steps_ms.items() for row in rows_of(impl, ms)] + small), {})


def test_every_step_of_the_cell_with_the_most_work_stands_beside_the_fastest_of_torchs():
    found = section(**STEP_MS)
    steps = shown(found)["steps"].rows.set_index("impl")
    assert steps["verdict"].dropna().to_dict() == {
        "ours": FASTER,
        "ours_fully_shard": FASTER,
        "torch_eager": UNDECIDED,  # 3% in single processes
    }
    assert steps.loc["ours", "ratio"] == pytest.approx(6000 / 4700)
    assert set(steps["size"]) == {"8B"}
    [change] = found.changes
    assert (change.before, change.after) == ("6.00 s", "4.70 s")
    assert found.answer.startswith("8B, bf16, 2 ranks, a sequence of 32,768 per rank: a step takes 4.70 s")


def test_without_a_time_of_torchs_nothing_is_faster():
    found = section(ours=4700.0)
    assert found.changes == []
    assert "variants with results" in found.answer
    assert shown(found)["steps"].rows["verdict"].isna().all()


def test_where_every_step_is_wrong_the_answer_says_so_and_the_errors_stay():
    wrong = step("ours", 1.0, **CELL) | TIMELESS | {"status": "wrong", "phase": "train_step", "clock": "host"}
    found = build(frame_of("step8b", [wrong, *rows_of("ours", 1.0)[-len(FUSIONS) - 1 : -len(FUSIONS)]]), {})
    assert "variants with results: none" in found.answer
    assert len(shown(found)["checks"].rows) == 1


def test_fusions_say_how_many_steps_each_is_of_and_what_it_saves():
    fusions = shown(section(**STEP_MS))["fusions"].rows
    assert list(fusions["steps_timed"]) == [1] * 6 + [3]
    assert fusions["less_than_the_row_above_ms"].dropna().tolist() == [100.0] * 6


def test_the_budgets_kinds_add_up_to_the_profiled_step_and_losses_begin_with_the_first():
    found = shown(section(**STEP_MS))
    assert found["budget"].rows.groupby("impl")["work_ms"].sum().to_dict() == pytest.approx(STEP_MS)
    losses = found["losses"].drawn[found["losses"].drawn["impl"] == "ours"]
    assert dict(zip(losses["step"], losses["losses"], strict=True)) == {1: 12.0, 2: 9.0, 3: 7.5}
    assert len(found["checks"].rows) == len(STEP_MS)
