"""The second path to the report's advice, on a CPU: its times mean nothing, its model and its manner are what count."""

import json
import math
import subprocess
import sys

import pytest
import torch
from torch.nn import functional

from pipeline.model.transformer import TransformerLM
from tools import by_hand

SMALL = ["--size", "tiny", "--context", "16", "--batch", "1"]


def test_the_model_is_the_pipelines_same_weights_give_the_same_loss_and_gradients():
    torch.manual_seed(1)
    theirs = TransformerLM(vocab_size=by_hand.VOCABULARY, context_length=16, **by_hand.SIZES["tiny"])
    ours = by_hand.Transformer(["eager"], 16, **by_hand.SIZES["tiny"])
    both = list(zip(ours.parameters(), theirs.parameters(), strict=True))
    with torch.no_grad():
        for own, other in both:
            own.copy_(other)
    tokens, targets = torch.randint(by_hand.VOCABULARY, (2, 2, 16))
    losses = [functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten()) for model in (ours, theirs)]
    torch.testing.assert_close(*losses)
    for loss in losses:
        loss.backward()
    for own, other in both:
        torch.testing.assert_close(own.grad, other.grad)


@pytest.mark.parametrize(
    "change", ["fused", "sdpa", "checkpointing", "bf16_weights", "fp32", "fused+sdpa+checkpointing"]
)
def test_a_change_trains_the_same_model(monkeypatch, change):
    monkeypatch.setattr(by_hand, "DEVICE", "cpu")
    plain, changed = ([float(step()) for _ in range(3)] for step in map(step_of, ("eager", change)))
    assert changed == pytest.approx(plain, rel=2e-3)
    assert plain[2] < plain[0]


def step_of(change):
    step, _ = by_hand.built(change.split("+"), "tiny", 16, 1)
    return step


def test_one_change_that_fails_and_one_that_needs_a_gpu_leave_the_others(monkeypatch, capsys, tmp_path):
    run = subprocess.run

    def fail_one(words, **options):
        return run([sys.executable, "-c", "raise SystemExit(3)"] if "sdpa" in words else words, **options)

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(by_hand.subprocess, "run", fail_one)
    levers = tmp_path / "tables" / "levers"
    levers.mkdir(parents=True)
    rows = ["eager,ok,30", "fused,ok,20", "flash,ok,25", "compile,ok,10", "eager_again,ok,50", "sdpa,oom,"]
    heads = "levers,status,median_ms,context_length,setting_batch_size,precision"
    (levers / "tiny.csv").write_text("\n".join([heads, *(f"{row},16,1,bf16" for row in rows)]), encoding="utf-8")
    out = tmp_path / "found.json"
    asked = ["--changes", "fused", "sdpa", "flash", "eager", "--beside", str(tmp_path), "--out", str(out)]
    by_hand.main([*SMALL, *asked])
    found = json.loads(out.read_text())["turns"]
    assert [row["change"] for row in found] == ["eager", "fused", "sdpa", "flash", "eager"]
    assert [row["status"] for row in found] == ["ok", "ok", "failed", "skipped", "ok"]
    assert [len(row["samples_ms"]) for row in found if row["status"] == "ok"] == [by_hand.TIMED_STEPS] * 3
    printed = capsys.readouterr().out
    assert "sdpa @16: failed: its process ended with exit code 3 and no record" in printed
    assert "flash @16: skipped: flash: needs a CUDA GPU" in printed
    beside = {line.split()[0]: line.split()[1:] for line in printed.partition("Beside")[2].splitlines()[2:]}
    assert set(beside) == {"eager", "fused", "flash"}
    own = (found[0]["median_ms"] + found[4]["median_ms"]) / 2 / found[1]["median_ms"]
    ours, theirs_ms, theirs, ratio = (float(cell) for cell in beside["fused"][1:])
    assert (theirs_ms, theirs) == (20, 2)
    assert ours == pytest.approx(own, abs=1e-3)
    assert ratio == pytest.approx(own / 2, abs=1e-3)
    assert beside["flash"] == ["–", "–", "25.00", "1.600", "–"]


def test_without_changes_the_eager_step_is_first_and_last_and_flash_meets_checkpoints_at_twice_the_context():
    found = by_hand.turns(None, 1024)
    assert found[0] == found[-1] == ("eager", 1024)
    assert found[-3:-1] == [("checkpointing", 2048), ("flash", 2048)]
    assert math.isnan(by_hand.eager_ms([], 1024))


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--size", "huge"], "invalid choice: 'huge'"),
        ([*SMALL, "--changes", "faster"], "must be eager or, joined by +, some of fused, flash"),
        ([*SMALL, "--changes", "flash+sdpa"], "these exclude each other: 'flash+sdpa'"),
        ([*SMALL, "--batch", "0"], "must be a whole number from 1, got '0'"),
        ([*SMALL, "--beside", "nowhere"], "there is no nowhere/tables/levers/tiny.csv"),
    ],
)
def test_bad_input_is_refused_in_one_line(capsys, words, why):
    with pytest.raises(SystemExit) as ended:
        by_hand.main(words)
    error = capsys.readouterr().err
    assert ended.value.code == 2
    assert why in error
    assert error.count("\n") == 1
