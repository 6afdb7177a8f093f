import pytest
import torch

from pipeline.formulas.sizes import SIZES
from pipeline.model.fused.step import fused_step
from pipeline.model.step import build_training_step

OPTIONS = {"vocab_size": 60, "context_length": 16, "batch_size": 2, "precision": "fp32", "device": "cpu"}


def gradients(step):
    loss = float(step.forward().detach())
    step.backward()
    parameters = [each for group in step.optimizer.param_groups for each in group["params"]]
    return loss, [each.grad.clone() for each in parameters]


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_fused_blocks_match_plain_loss_and_gradients_in_the_weights_dtype(attention):
    step = build_training_step(SIZES["tiny"], **OPTIONS, attention=attention)
    loss, plain = gradients(step)
    step.discard()
    fused_loss, fused = gradients(fused_step(step, attention, torch.float32))
    assert fused_loss == pytest.approx(loss, rel=1e-5)
    torch.testing.assert_close(fused, plain, rtol=1e-3, atol=1e-5)
    step.discard()
    rounded_loss, rounded = gradients(fused_step(step, attention, torch.bfloat16))
    assert rounded_loss == pytest.approx(loss, rel=0.01)
    for found, gradient in zip(rounded, plain, strict=True):
        assert found.dtype == torch.float32
        assert (found - gradient).norm() < 0.1 * gradient.norm()
