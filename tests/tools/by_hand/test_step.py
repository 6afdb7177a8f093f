import pytest

from tools.by_hand import step


@pytest.mark.parametrize(
    "change", ["fused", "sdpa", "checkpointing", "bf16_weights", "fp32", "fused+sdpa+checkpointing"]
)
def test_a_change_trains_the_same_model(monkeypatch, change):
    monkeypatch.setattr(step, "DEVICE", "cpu")
    plain, changed = ([float(run()) for _ in range(3)] for run in map(step_of, ("eager", change)))
    assert changed == pytest.approx(plain, rel=2e-3)
    assert plain[2] < plain[0]


def step_of(change):
    run, _ = step.built(change.split("+"), "tiny", 16, 1)
    return run
