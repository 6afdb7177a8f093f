from dataclasses import asdict

import pytest
import torch

from pipeline.errors import Skipped
from pipeline.model import TransformerLM
from pipeline.stages.accounting.cell import Cell, Settings
from pipeline.stages.accounting.measure import measure
from pipeline.stages.accounting.models import XXL, lacking, model_named
from pipeline.stages.accounting.questions import Asked, answer


def answers(question, model=XXL, batch_size=1, seq_lens=(), **settings):
    return answer(question, Asked(model, Settings(**settings), batch_size, seq_lens))


def test_memory_adds_up_and_fits_on_its_gpus_and_no_fewer():
    for row in answers("memory", batch_size=8, seq_lens=(1, 4096), gpu_memory_gb=80):
        parts = row["weights_bytes"] + row["gradients_bytes"] + row["optimizer_bytes"] + row["activation_bytes"]
        assert row["total_bytes"] == parts
        assert (row["total_gpus"] - 1) * 80e9 < row["total_bytes"] <= row["total_gpus"] * 80e9
        assert row["total_gpus_of_gib"] < row["total_gpus"]
        inputs_a_token = 126 * (16384 + 53248)  # of both layers of each block, in bf16
        assert row["activation_bytes"] == 8 * row["seq_len"] * 2 * inputs_a_token
    rows = answers("fsdp", seq_lens=(4096,), device_memory_gb=95)
    by_devices = {row["num_devices"]: row["bytes_per_device"] for row in rows}
    least = rows[0]["least_devices"]
    assert by_devices[least] < 95e9 <= by_devices[least - 1]


def test_meshes_become_compute_bound_and_the_best_bucket_count_beats_whole_ones():
    rows = answers("mesh")
    assert {round(row["num_devices"], 6) for row in rows} == {64}
    assert {"given", "overlap", "fp8_weights", "split", "best_split", "batch"} <= {row["case"] for row in rows}
    for row in rows:
        if row["case"] != "batch" and "tokens" in row:
            assert row["compute_ms"] == pytest.approx(row["communication_ms"])
            assert row["tokens"] <= row["whole_tokens"] < row["tokens"] + 64.001
            together = max if row["case"].endswith("overlap") else sum
            assert row["communication_ms"] == pytest.approx(together([row["fsdp_ms"], row["tensor_ms"]]))
    assert any("tokens" not in row for row in rows)
    model = model_named("xl", 10_000)
    rows = answers("buckets", model)
    best = next(row["overhead_ms"] for row in rows if row["case"] == "best")
    whole = [row["overhead_ms"] for row in rows if row["case"] == "buckets"]
    assert best <= min(whole)
    assert whole[0] > min(whole) < whole[-1]
    assert {row["gradient_bytes"] for row in rows} == {4 * model.parameters}
    scores = {row["score_matrix_bytes"] for row in answers("attention", model, 2, (512,))}
    assert scores == {4 * 2 * 25 * 512**2}  # of 2 sequences, 25 heads each


@pytest.mark.parametrize(
    ("question", "size", "missing"),
    [("attention", "XXL", "attention"), ("mesh", "one_head", "feed-forward layers"), ("mesh", "xl", "")],
)
def test_a_question_that_does_not_suit_the_model_is_skipped_with_the_reason(question, size, missing):
    assert lacking(question, model_named(size, 10_000)) == missing
    if missing:
        with pytest.raises(Skipped, match=f"^{size} has no {missing}$"):
            measure(Cell(question, size), Settings(), None)


def test_a_block_counts_the_weights_of_the_transformers_feed_forward_network():
    model = model_named("small", vocab_size=100)
    with torch.device("meta"):
        layer = TransformerLM(vocab_size=100, context_length=16, **asdict(model.size)).layers[0]
    weights = sum(weight.numel() for weight in layer.feed_forward.parameters())
    assert weights == model.block.weights == model.block.matrices * model.block.d_model * model.block.d_ff
