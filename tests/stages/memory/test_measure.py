import gc
from dataclasses import replace

import pytest
import torch

from pipeline.errors import Skipped
from pipeline.formulas.activations import Workload, block_bytes, block_weight_copy_bytes, residual_stream_bytes
from pipeline.formulas.parameters import block_parameter_count, parameter_bytes
from pipeline.formulas.peak_memory import CATEGORIES, predict_peaks
from pipeline.formulas.sizes import SIZES
from pipeline.instruments.memory.snapshot import read_events
from pipeline.instruments.sampling.stopwatch import Stopwatch
from pipeline.model.step import build_training_step
from pipeline.stages.memory.cell import Cell, Settings
from pipeline.stages.memory.measure import block_rows, measure

SETTINGS = Settings(vocab_size=300, warmup_steps=0, budget_s=0)
TINY = {"size": "tiny", "context_length": 24}


def measured(folder, **varied):
    return measure(Cell(**(TINY | varied)), SETTINGS, Stopwatch(), folder)


@pytest.fixture(scope="module")
def step(tmp_path_factory):
    """Measure a training step; return its folder and its rows by kind."""
    folder = tmp_path_factory.mktemp("files")
    by_kind = {}
    for row in measured(folder):
        by_kind.setdefault(row["kind"], []).append(row)
    return folder, by_kind


def test_categories_add_up_to_each_peak_and_all_training_state_is_found(step):
    folder, rows = step
    peaks, phases = rows["peak"], ("forward", "backward", "optimizer")
    names = [(0, "build"), *((number, phase) for number in (1, 2) for phase in phases)]
    assert [(row["step"], row["phase"]) for row in peaks] == names
    for row in peaks:
        assert row["begin_event"] <= row["peak_event"] <= row["end_event"]
        assert sum(row[f"{name}_bytes"] for name in CATEGORIES) == row["peak_bytes"]
    series = [row["active_bytes"] for row in rows["timeline"]]
    totals, most = {sum(at_once) for at_once in zip(*series, strict=True)}, {row["peak_bytes"] for row in peaks}
    assert most <= totals
    assert max(totals) == max(most)
    parameters = parameter_bytes(SIZES["tiny"], SETTINGS.vocab_size)
    last = peaks[-1]
    assert [path.name for path in folder.iterdir()] == ["snapshot.pickle"]
    assert len(read_events(folder / "snapshot.pickle")) == last["end_event"]
    assert last["parameters_bytes"] == last["gradients_bytes"] == parameters
    # On a CPU the step counters are optimizer state too: 4 bytes per parameter tensor.
    assert 0 <= last["optimizer_state_bytes"] - 2 * parameters <= 4 * 30


def test_the_largest_allocations_name_lines_of_the_model(step):
    rows = step[1]["largest"]
    sizes = [row["size_bytes"] for row in rows]
    assert sizes == sorted(sizes, reverse=True)
    weights = [row for row in rows if row["category"] == "parameters"]
    assert {row["location"].partition("/")[0] for row in weights} == {"model"}
    assert any("self.token_embedding = Embedding" in row["code"] for row in weights)
    of_loss = [row for row in rows if "cross_entropy" in row["code"] and row["category"] == "activations"]
    assert {row["count"] for row in of_loss} == {1}  # of the last step
    assert [row["rank"] for row in rows] == list(range(1, len(rows) + 1))
    (row,) = step[1]["residual"]  # two sums per block
    assert row["size_bytes"] == row["smallest_bytes"] == 4 * 4 * 24 * 64
    assert row["count"] == 2 * SIZES["tiny"].num_layers


@pytest.mark.parametrize("mode", ["forward", "inference"])
def test_only_training_steps_are_timed_and_inference_keeps_few_activations(step, tmp_path, mode):
    assert len(step[1]["time"][0]["samples_ms"]) >= SETTINGS.steps
    rows = measured(tmp_path, mode=mode)
    assert "time" not in {row["kind"] for row in rows}
    (saved,) = [row["activations_bytes"] for row in rows if row["kind"] == "saved"]
    logits = 4 * 4 * 24 * SETTINGS.vocab_size
    assert (saved > 4 * logits) == (mode == "forward")


def test_recomputed_blocks_count_as_activations(tmp_path):
    rows = {every: measured(tmp_path, checkpoint_every=every) for every in (0, 1)}

    def activations(every, phase):
        return next(row["activations_bytes"] for row in rows[every] if row.get("step") == 2 and row["phase"] == phase)

    assert activations(1, "forward") < activations(0, "forward") / 2
    assert activations(1, "backward") > activations(1, "forward")


def test_num_layers_sets_the_number_of_blocks_and_checkpoints_leave_out_block_rows(tmp_path):
    rows = measured(tmp_path, num_layers=3, attention="sdpa", checkpoint_every=1, checkpointing="selective")
    (last,) = [row for row in rows if row.get("step") == 2 and row["phase"] == "optimizer"]
    assert last["parameters_bytes"] == parameter_bytes(replace(SIZES["tiny"], num_layers=3), SETTINGS.vocab_size)
    assert "block" not in {row["kind"] for row in rows}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("attention", ["eager", "tiled", "sdpa"])
def test_saved_tensors_and_gradients_of_a_single_block_match_the_formulas(precision, attention):
    shape = {"vocab_size": 100, "context_length": 24, "batch_size": 3}
    step = build_training_step(SIZES["tiny"], **shape, precision=precision, device="cpu", attention=attention)
    block, *saved = block_rows(step, SIZES["tiny"].d_model)
    workload = Workload(SIZES["tiny"], 100, 3, 24, precision, attention, device_type="cpu")
    expected = block_bytes(workload) + block_weight_copy_bytes(workload)
    assert block["saved_bytes"] == sum(row["size_bytes"] for row in saved) == expected
    assert block["gradients_bytes"] == 4 * block_parameter_count(SIZES["tiny"])
    assert block["input_gradient_bytes"] == residual_stream_bytes(workload)
    assert all(parameter.grad is None for parameter in step.model.parameters())


@pytest.mark.parametrize(
    ("varied", "reason"),
    [
        ({"checkpointing": "recursive"}, "recursive checkpointing needs a checkpoint_every of at least 1"),
        ({"checkpointing": "selective", "checkpoint_every": 1}, "needs attention that is one operator, eager is"),
        ({"num_layers": 4, "checkpoint_every": 5}, "fewer than 5 blocks"),
        ({"attention": "flash"}, "needs a CUDA GPU"),
    ],
)
def test_impossible_checkpoints_and_attention_are_skipped(monkeypatch, tmp_path, varied, reason):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(Skipped, match=reason):
        measured(tmp_path, **varied)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(("attention", "checkpoint_every"), [("eager", 0), ("eager", 2), ("flash", 0)])
def test_on_a_gpu_the_replay_matches_the_allocator_and_the_formulas(tmp_path, precision, attention, checkpoint_every):
    model = {"precision": precision, "attention": attention, "checkpoint_every": checkpoint_every}
    cell, settings = Cell(size="small", context_length=512, **model), Settings(warmup_steps=0, budget_s=0)
    gc.collect()  # so that nothing left by earlier tests is released during the recording
    there_before = torch.cuda.memory_stats().get("requested_bytes.all.current", 0)
    rows = measure(cell, settings, Stopwatch(), tmp_path)
    peaks = [row for row in rows if row["kind"] == "peak" and row["step"] > 0]
    (allocator,) = [row for row in rows if row["kind"] == "allocator"]
    assert max(row["peak_bytes"] for row in peaks) == allocator["requested_peak_bytes"] - there_before
    workload = Workload(SIZES["small"], settings.vocab_size, settings.batch_size, 512, **model)
    for row in peaks:
        predicted = predict_peaks(workload, "train_step", first_step=row["step"] == 1)[row["phase"]]
        # The formulas leave out workspaces of the matmul library.
        assert predicted.total_bytes == pytest.approx(row["peak_bytes"] - row["other_bytes"], rel=0.05)
