import math
import shutil
from dataclasses import replace
from unittest import mock

import pandas as pd
import pytest
import torch
from torch.utils.checkpoint import CheckpointPolicy

from pipeline.errors import Skipped
from pipeline.formulas.sizes import SIZES
from pipeline.instruments.profilers.budget import budget
from pipeline.model import checkpointing
from pipeline.model.fused.operations import in_torch, in_triton
from pipeline.stages.step8b import correctness, keeping
from pipeline.stages.step8b.cell import FUSIONS, Cell, Settings
from pipeline.stages.step8b.models import build
from pipeline.stages.step8b.turn import ladder

from ...ranks import on_ranks

CPU = torch.device("cpu")
SMALL = Cell(size="tiny", context_length=64, impls="torch_eager+ours+torch_eager+ours_fully_shard+torch_selective")
FEW = {"vocab_size": 500, "loss_chunk": 24, "checked_context": 32, "descent_context": 32, "descent_steps": 8}
SMALL_SETTINGS = Settings(**FEW, steps=2)


def test_the_fused_model_is_as_close_to_fp32_as_the_plain_one_in_bf16():
    errors = correctness.check(SMALL, SMALL_SETTINGS, CPU)
    assert {row["status"] for row in correctness.check_rows(errors, SMALL_SETTINGS)} == {"ok"}
    assert 0 < errors["ours"]["gradient_error"] < 0.02
    assert errors["ours"]["worst_gradient_error"] >= errors["ours"]["gradient_error"]


@on_ranks(1)
@pytest.mark.parametrize("impl", ["torch_eager", "ours_fully_shard"])
def test_tied_embeddings_stay_tied_where_torch_shards_them(context, impl):
    cell = replace(SMALL, size="mine-d64-f96-l2-h4-kv2-v0-tied")
    training = build(impl, cell, SMALL_SETTINGS, CPU, 0, ["gate_up"] * 2)
    training.run()
    assert [weight.shape for weight in training.model.parameters()].count((500, 64)) == 1


@pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")
@on_ranks(1)
def test_compiled_blocks_keep_attention_and_compute_the_same(context):
    kept, decide = [], checkpointing._policy

    def recorded(context, operator, *args, **kwargs):
        decision = decide(context, operator, *args, **kwargs)
        if decision is CheckpointPolicy.MUST_SAVE and not context.is_recompute:
            kept.append(str(operator))
        return decision

    eager, selective = (
        build(impl, SMALL, SMALL_SETTINGS, CPU, 0, []) for impl in ("torch_eager", "torch_compiled_selective")
    )
    with mock.patch.object(checkpointing, "_policy", recorded):
        losses = [[float(training.run()) for _ in range(2)] for training in (eager, selective)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)
    assert len(kept) == 2 * SIZES["tiny"].num_layers  # two steps


def without_the_silu_s_slope(dh, gate, up, in_place=False):
    h, _, dup = in_torch().swiglu_backward(dh, gate, up)
    return h, dh * up * torch.sigmoid(gate), dup


@pytest.mark.parametrize(
    "wrong",
    [
        {"swiglu_backward": without_the_silu_s_slope},
        {"swiglu": lambda gate, up: gate * up},
        {"rotate": lambda q, k, _cos, _sin, back=False: (q, k)},
        {"rms_norm": lambda x, weight, eps, addend=None: (math.nan * x, x)},
    ],
)
def test_a_wrong_operation_is_detected(monkeypatch, wrong):
    monkeypatch.setattr(correctness, "best_operations", lambda _device: replace(in_torch(), **wrong))
    ours, plain = correctness.check_rows(correctness.check(SMALL, SMALL_SETTINGS, CPU), SMALL_SETTINGS)
    assert (ours["status"], plain["status"]) == ("wrong", "ok")


def test_the_budget_counts_overlapping_work_once_and_no_hidden_communication():
    hidden_by_half = ("ncclDevKernel_AllGather", 500.0, 1000.0)
    kernels = [("sm90_gemm", 0.0, 1000.0), hidden_by_half]
    kernels += [("hopper_forward_kernel", 2000.0, 3000.0), ("hopper_forward_kernel", 4000.0, 2000.0)]
    work = pd.DataFrame(kernels, columns=["name", "start_us", "duration_us"])
    items = {item["category"]: (item["work_ms"], item["launches"]) for item in budget(work, wall_ms=7.0)}
    assert items == {"matmul": (1.0, 1), "attention": (4.0, 2), "communication": (0.5, 1), "idle": (1.5, 0)}


def test_on_a_gpu_the_ladder_leads_from_torchs_operations_to_all_of_ours():
    names, operations, attentions = zip(*ladder(torch.device("cuda")), strict=True)
    assert names == FUSIONS[:-1]
    assert (operations[0], operations[-1]) == (in_torch(), in_triton())
    assert len({*attentions}) == 2


@pytest.mark.parametrize("impl", ["ours", "torch_eager", "torch_selective"])
def test_a_step_that_cannot_fit_is_skipped_with_needed_and_free_memory(monkeypatch, impl):
    monkeypatch.setattr(keeping, "available_bytes", lambda *_: 40e9)
    with pytest.raises(Skipped, match=r"^a step needs [78]\d\.\d GB a GPU at the least, 40\.0 GB are free$"):
        keeping.choose(impl, Cell(), Settings(), torch.device("cuda"))


def test_while_fusions_are_measured_layers_leave_room_for_torchs_operations(monkeypatch):
    def chosen(free_gb):
        monkeypatch.setattr(keeping, "available_bytes", lambda *_: 1e9 * free_gb)
        return keeping.choose("ours", Cell(), Settings(), torch.device("cuda"))

    large, small, smallest = map(chosen, (146, 81, 71.5))
    assert ({*large.levels}, {*large.beside_fusions}) == ({"qkv", "gate_up"}, {"qkv"})
    assert ({*small.levels}, {*small.beside_fusions}) == ({"attention", "qkv"}, {"input", "attention"})
    assert ({*smallest.levels}, smallest.beside_fusions) == ({"input", "attention"}, None)
