import gc
import math
import weakref
from contextlib import contextmanager
from dataclasses import replace

import pytest

from pipeline.formulas.sizes import OwnSize
from pipeline.stages.tensor_parallel import ranks
from pipeline.stages.tensor_parallel.cell import IMPLS, Cell
from pipeline.stages.tensor_parallel.measure import measure, rows_of, why_not
from pipeline.stages.tensor_parallel.steps import build_whole
from pipeline.stages.tensor_parallel.ways import divided, fsdp_ranks

from ...ranks import on_ranks
from ...records import rows_on_gloo, rows_read
from .conftest import BLOCK, SMOKE
from .ring_on_cpu import ring_on_cpu

STEP = Cell(what="step", precision="fp32", size="tiny", batch_size=4, context_length=16, world_size=2)
GROUPED = OwnSize(64, 96, 2, num_heads=4, num_kv_heads=2, head_dim=24)


@pytest.fixture(scope="module")
def step_rows(host):
    return rows_on_gloo(host, measure, STEP, SMOKE)


def whole_steps(rows):
    return {row["impl"]: row for row in rows if row.get("phase") == "train_step" or row["status"] == "skipped"}


def sent(rows, impl):
    return {row["collective"]: row for row in rows if row["measures"] == "traffic" and row.get("impl") == impl}


@pytest.mark.parametrize("name", ["block_rows", "step_rows"])
def test_every_way_gives_the_loss_and_the_gradients_of_one_process(name, request):
    steps = whole_steps(request.getfixturevalue(name))
    timed = {impl: row for impl, row in steps.items() if row["status"] != "skipped"}
    assert {*timed} == {*IMPLS["block"]} - ({"context"} if name == "block_rows" else {"context", "fsdp_tensor"})
    assert {row["status"] for row in timed.values()} <= {"ok", "unstable"}
    for row in timed.values():
        assert row["loss"] == pytest.approx(timed["none"]["loss"], rel=1e-5)
        assert row["gradient_error"] <= SMOKE.fp32_tolerance


def checked(context, cell, impl):
    reference = ranks.gradients_of(build_whole(cell, SMOKE, context.device))
    with divided(impl, cell, SMOKE, context.device) as step:
        found = ranks.check(step, cell, reference, fsdp_ranks(impl, context.device))
    assert found.loss == pytest.approx(reference[0].item(), rel=1e-5)
    return found.complaint(SMOKE.fp32_tolerance)


@on_ranks(2, 4)
def test_context_parallelism_gives_the_loss_and_gradients_of_one_process(context):
    with ring_on_cpu():
        assert checked(context, replace(BLOCK, world_size=context.world_size), "context") == ""


@on_ranks(2)
@pytest.mark.parametrize("impl", ["tensor", "sequence", "fsdp"])
def test_models_with_grouped_query_attention_are_divided_correctly(context, impl):
    assert checked(context, replace(STEP, size=GROUPED.name("grouped")), impl) == ""


@on_ranks(2)
def test_doubled_gradients_have_a_relative_error_of_one(context):
    _, whole = ranks.gradients_of(build_whole(BLOCK, SMOKE, context.device))
    with divided("sequence", replace(BLOCK, world_size=2), SMOKE, context.device) as step:
        step.loss_scale *= 2  # as if gradients were averaged over ranks, not summed
        _, gradients = ranks.gradients_of(step)
    errors = ranks.relative_errors(gradients, whole)
    assert all(error == pytest.approx(1.0, rel=1e-3) for error in errors.values())


@on_ranks(2)
def test_each_turn_frees_its_model(context):
    built, cell = [], replace(BLOCK, world_size=2)

    @contextmanager
    def watched(*arguments):
        with divided(*arguments) as step:
            built.append(weakref.ref(step.model))
            yield step

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranks, "divided", watched)
        ranks.measure_rank(context, cell, replace(SMOKE, rounds=2), ["none", "sequence", "fsdp"])
    gc.collect()
    assert len(built) == 6
    assert [each() for each in built] == [None] * 6


@pytest.mark.parametrize(
    ("errors", "what"), [((0.5, 1e-6), "loss"), ((1e-6, 0.5), "gradient of w"), ((0.0, math.nan), "gradient of w")]
)
def test_wrong_results_are_reported_and_not_timed(errors, what):
    (row,) = rows_of("tensor", ranks.Result(ranks.Correctness(1.0, *errors, "w")), BLOCK, SMOKE, None)
    assert row["status"] == "wrong"
    assert row["reason"].startswith(f"the {what} is off")


def test_bytes_sent_match_the_formulas_and_times_have_predictions(block_rows):
    steps = whole_steps(block_rows)
    for impl in ("none", "tensor", "sequence"):  # these send for matrices only, as the formulas assume
        assert steps[impl]["sent_bytes"] == steps[impl]["predicted_bytes"]
    norms = 2 * 128 * 4  # bytes
    for impl, x, y in (("fsdp", 4, 1), ("fsdp_tensor", 2, 2)):
        more = steps[impl]["sent_bytes"] - steps[impl]["predicted_bytes"]
        assert 0 <= more <= 3 * norms * (x - 1) / x * y
    activations = 4 * 16 * 128 * 4  # bytes; two all-reduces per pass
    assert sent(block_rows, "tensor")["allreduce"]["measured_bytes"] == 4 * activations
    assert sent(block_rows, "fsdp_tensor")["allreduce"]["measured_bytes"] == 4 * activations / 2
    rates = {row["rate"]: row for row in block_rows if row["measures"] == "rate"}
    assert rates["allreduce_activations"]["size_bytes"] == activations
    assert rates["allreduce_weights"]["size_bytes"] == (4 * 128**2 + 3 * 128 * 512) * 4
    assert "CPU" in steps.pop("context")["reason"]  # there is no ring without GPUs
    for row in steps.values():
        assert row["compute_ms"] > 0
        assert row["overlapped_ms"] <= row["in_turn_ms"] == row["compute_ms"] + row["communication_ms"]
        assert row["tokens"] == 4 * 16


def test_whole_steps_send_a_bit_more_than_predicted_with_tensor_and_less_with_fsdp(step_rows):
    steps = whole_steps(step_rows)
    for impl in ("tensor", "sequence"):
        sent_bytes, predicted_bytes = steps[impl]["sent_bytes"], steps[impl]["predicted_bytes"]
        assert predicted_bytes == 2 * (2 * 2 + 1) * 4 * 16 * 64 * 4  # passes, all-reduces, tokens, width, bytes
        assert predicted_bytes < sent_bytes < 1.05 * predicted_bytes
    # What FSDP gathers last it keeps for the backward pass.
    assert steps["fsdp"]["sent_bytes"] < steps["fsdp"]["predicted_bytes"]


def test_bf16_sends_half_as_many_bytes(host, block_rows):
    rows = rows_on_gloo(host, measure, replace(BLOCK, precision="bf16"), SMOKE)
    assert {row["status"] for row in whole_steps(rows).values()} <= {"ok", "unstable", "skipped"}
    for impl in ("tensor", "sequence", "fsdp", "fsdp_tensor"):
        for name, row in sent(rows, impl).items():
            assert row["measured_bytes"] == sent(block_rows, impl)[name]["measured_bytes"] / 2, (impl, name)


@pytest.mark.parametrize(
    ("impl", "changes", "words"),
    [
        ("fsdp_tensor", {"world_size": 2}, "needs 4 ranks"),
        ("tensor", {"world_size": 8}, "4 heads of keys cannot be divided among 8 ranks"),
        ("fsdp", {"batch_size": 3}, "3 sequences cannot be divided among 4 ranks"),
        ("sequence", {"context_length": 18}, "18 tokens"),
        ("none", {"batch_size": 3}, ""),
        ("tensor", {"batch_size": 3}, ""),
        ("context", {"batch_size": 3}, ""),
        ("context", {"context_length": 12}, "12 tokens"),
    ],
)
def test_ways_that_cannot_be_divided_say_why(impl, changes, words):
    found = why_not(impl, replace(BLOCK, **changes), "cuda")
    assert found.startswith(words) if words else found == ""


@pytest.mark.gpu(count=2)
@pytest.mark.parametrize("what", IMPLS)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_on_gpus_every_way_is_right_and_has_a_budget(what, precision):
    cell = Cell(what=what, precision=precision, size="small", batch_size=4, context_length=256)
    rows = rows_read(measure, cell, replace(SMOKE, matmul_side=1024))
    steps = whole_steps(rows)
    possible = [impl for impl in IMPLS[what] if impl != "fsdp_tensor"]
    assert {impl: steps[impl]["status"] for impl in possible if steps[impl]["status"] not in ("ok", "unstable")} == {}
    assert all(steps[impl]["peak_bytes"] > 0 and steps[impl]["gpu_busy_ms"] > 0 for impl in possible)
    kinds = {(row["impl"], row["category"]) for row in rows if row["measures"] == "budget"}
    assert {(impl, "matmul") for impl in possible} <= kinds
    assert ("none", "communication") not in kinds
    assert ("tensor", "communication") in kinds
