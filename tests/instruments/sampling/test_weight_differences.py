import pytest
import torch

from pipeline.instruments.sampling import weight_differences
from pipeline.instruments.sampling.weight_differences import Comparison, Differences, sample
from pipeline.parallel.processes.starting import run_ranks


def test_a_sample_spans_a_large_parameter_and_is_a_copy(monkeypatch):
    monkeypatch.setattr(weight_differences, "SAMPLES_A_PARAMETER", 10)
    weights = {"weight": torch.arange(96.0).view(8, 12), "bias": torch.tensor([-1.0])}
    sampled = sample(weights)
    weights["bias"] += 1
    found = {name: values.tolist() for name, values in sampled.items()}
    assert found == {"weight": [*range(0, 96, 10)], "bias": [-1]}


def weights(rank, moved, of_last_rank=0.0):
    """Return a parameter that moves and one that does not; the last of two ranks is off by `of_last_rank`."""
    return {"bias": torch.ones(2), "weight": torch.tensor([moved, moved + rank * of_last_rank])}


def compared_in_turn(context):
    comparison = Comparison()
    without = comparison.differences(weights(context.rank, 3.0, 0.75), context.device)
    comparison.begin(lambda: weights(context.rank, 0.0))
    comparison.begin(lambda: pytest.fail("only the reference is asked for its first weights"))
    reference = comparison.differences(weights(context.rank, 4.0), context.device)
    off = comparison.differences(weights(context.rank, 5.0), context.device)
    lost = comparison.differences(weights(context.rank, float("nan")), context.device)
    return without, reference, off, lost


def test_weights_are_compared_between_ranks_and_with_how_far_the_reference_moved():
    without, reference, off, lost = run_ranks(compared_in_turn, 2, backend="gloo")[0]
    assert without == Differences(0.75, "weight")
    assert (reference.between_ranks, reference.from_reference, reference.share) == (0, 0, 0)
    assert (off.between_ranks, off.from_reference, off.share, off.off) == (0, 1, 0.25, "weight")
    assert all(lost.complaint(precision) for precision in ("fp32", "bf16"))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_ranks_that_differ_are_wrong_in_any_precision(precision):
    assert "differs between ranks by 0.014" in Differences(0.014, "weight").complaint(precision)
    assert Differences(1e-6, "weight", 1e-6, 0.01, "weight").complaint(precision, same_gradients=True) == ""
    assert Differences(float("nan"), "weight").complaint(precision)
    assert Differences().complaint(precision) == ""


def test_weights_unlike_the_reference_are_wrong_unless_bf16_rounding_may_be_the_cause():
    apart = Differences(0.0, "", 0.01, 0.47, "weight")
    assert "weight is off by 47%" in apart.complaint("fp32")
    assert "weight is off by 47%" in apart.complaint("bf16", same_gradients=True)
    assert apart.complaint("bf16") == ""
