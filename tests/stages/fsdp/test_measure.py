import math
from dataclasses import replace
from functools import partial

import pytest

from pipeline.formulas import fsdp_training
from pipeline.formulas.parameters import parameter_bytes
from pipeline.formulas.sizes import SIZES, OwnSize
from pipeline.model.step import build_training_step
from pipeline.parallel.fsdp_units import find_groups
from pipeline.stages.fsdp.cell import FULLY_SHARDED, IMPLS, Cell, Settings
from pipeline.stages.fsdp.measure import is_block_or_end, measure
from pipeline.ways.cell import PHASES

from ...records import rows_on_gloo

SMOKE = Settings(vocab_size=300, warmup_steps=2, steps=5, rounds=1)
SMALL = Cell(size="tiny", batch_size_per_rank=1, context_length=16)
GROUPED = OwnSize(64, 96, 2, num_heads=4, num_kv_heads=2, head_dim=24)
TIED = replace(GROUPED, tie_embeddings=True)


@pytest.fixture(scope="module")
def rows(host, tmp_path_factory):
    return rows_on_gloo(host, partial(measure, files_dir=tmp_path_factory.mktemp("kept")), SMALL, SMOKE)


def whole_steps(rows):
    return {row["impl"]: row for row in rows if row.get("phase") == "train_step"}


def bytes_as_predicted(rows):
    """Return the rows of memory and of traffic; assert that they measured what was predicted."""
    memory = {(row["impl"], row["kind"]): row for row in rows if row["measures"] == "memory"}
    traffic = {(row["impl"], row["collective"]): row for row in rows if row["measures"] == "traffic"}
    for row in (*memory.values(), *traffic.values()):
        if "predicted_bytes" in row:
            assert row["measured_bytes"] == row["predicted_bytes"], row
    return memory, traffic


def same_losses(rows):
    """Assert that the ways that average have the same loss, and return it."""
    losses = [row["loss"] for impl, row in whole_steps(rows).items() if impl != "none"]
    assert losses == pytest.approx([losses[0]] * len(losses), rel=1e-5)
    return losses[0]


def test_every_way_is_timed_and_all_but_none_have_the_same_loss(rows):
    steps = whole_steps(rows)
    assert list(steps) == list(IMPLS)
    assert all(row["n"] == 5 and math.isfinite(row["median_ms"]) for row in steps.values())
    assert {row["tokens"] for row in steps.values()} == {2 * 1 * 16}  # ranks, batch, context
    assert abs(steps["none"]["loss"] / same_losses(rows) - 1) > 1e-2
    assert max(row["loss"] for row in steps.values()) < math.log(SMOKE.vocab_size)  # a mean, not a sum: it has fallen
    phases = {row["phase"] for row in rows if row["measures"] == "time" and row["impl"] == "fsdp"}
    assert phases == {*PHASES, "train_step"}
    # A step of each fully sharded way is captured.
    captures = {row["impl"]: row for row in rows if row["measures"] == "capture"}
    assert set(captures) == set(FULLY_SHARDED)
    assert all(row["gather_ms"] > 0 and row["computation_ms"] > 0 for row in captures.values())


def test_memory_and_traffic_match_the_formulas(rows):
    memory, traffic = bytes_as_predicted(rows)
    assert memory["fsdp", "parameters"]["predicted_bytes"] < 0.51 * memory["ddp", "parameters"]["predicted_bytes"]
    assert traffic["fsdp", "allgather_base"]["calls"] == 2 * 4 - 2  # embedding, two blocks, head
    assert all(traffic[impl, "reduce_scatter_base"]["measured_bytes"] > 0 for impl in FULLY_SHARDED)


def test_tied_embeddings_are_held_and_sent_once(host):
    rows = rows_on_gloo(host, measure, replace(SMALL, size=TIED.name("tied")), SMOKE)
    _, traffic = bytes_as_predicted(rows)
    assert traffic["ddp", "allreduce"]["measured_bytes"] == parameter_bytes(TIED, SMOKE.vocab_size)
    same_losses(rows)


@pytest.mark.parametrize("size", [SIZES["tiny"], GROUPED, TIED])
@pytest.mark.parametrize(
    ("plan_of", "rule"), [(fsdp_training.sharded_by_block, is_block_or_end), (fsdp_training.sharded_by_layer, None)]
)
def test_planned_units_are_those_of_the_model(plan_of, rule, size):
    step = build_training_step(size, vocab_size=300, context_length=16, batch_size=1, precision="fp32", device="cpu")
    groups = find_groups(step.model, rule)
    plan = plan_of(size, 300, 2, 4)
    assert [unit.sizes for unit in plan.units] == [tuple(p.numel() for p in group.members) for group in groups]
    sharded = {parameter for group in groups for parameter in group.members}
    assert plan.replicated == sum(p.numel() for p in step.model.parameters() if p not in sharded)
