import math
import weakref
from contextlib import nullcontext
from dataclasses import replace
from functools import partialmethod

import pytest
import torch
from torch._dynamo.utils import counters

from pipeline.formulas.sizes import ModelSize
from pipeline.model.precision import PRECISIONS
from pipeline.model.step import build_training_step
from pipeline.ranges import listening

SIZE = ModelSize(d_model=32, d_ff=64, num_layers=2, num_heads=2)
VOCAB_SIZE = 40


def build_step(precision="fp32", **more):
    shape = {"vocab_size": VOCAB_SIZE, "context_length": 16, "batch_size": 4}
    return build_training_step(SIZE, **shape, precision=precision, device="cpu", **more)


def gradients(step):
    return [parameter.grad for parameter in step.model.parameters()]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_loss_falls_when_one_batch_is_repeated(precision):
    step = build_step(precision)
    first = step.run().item()
    for _ in range(60):
        last = step.run().item()
    assert first > 0.9 * math.log(VOCAB_SIZE)
    assert last < 0.5 * first


def test_run_equals_its_phases_and_the_last_updates_every_parameter():
    whole, phases = build_step(), build_step()
    for _ in range(2):
        before = [parameter.clone() for parameter in phases.model.parameters()]
        loss = phases.forward().detach()
        phases.backward()
        assert all(gradient is not None for gradient in gradients(phases))
        phases.optimizer_step()
        assert not any(map(torch.equal, before, phases.model.parameters()))
        assert gradients(phases) == [None] * len(before)
        torch.testing.assert_close(whole.run(), loss, rtol=0, atol=0)
    torch.testing.assert_close(whole.model.state_dict(), phases.model.state_dict(), rtol=0, atol=0)


def test_the_seed_determines_weights_and_tokens_and_targets_are_next_tokens():
    first, again, other = build_step(seed=3), build_step(seed=3), build_step(seed=4)
    torch.testing.assert_close(first.tokens[:, 1:], first.targets[:, :-1], rtol=0, atol=0)
    assert first.run() == again.run() != other.run()
    assert not torch.equal(first.tokens, other.tokens)


def test_loss_is_the_mean_over_tokens_of_the_negative_log_likelihood():
    step = build_step()
    likelihoods = step.model(step.tokens).softmax(-1).gather(-1, step.targets.unsqueeze(-1))
    torch.testing.assert_close(step.forward(), -likelihoods.log().mean())


@pytest.mark.parametrize("weights_dtype", [torch.float32, torch.bfloat16])
def test_bf16_logits_are_bf16_and_all_state_but_the_angles_has_the_weights_dtype(weights_dtype):
    step, logit_dtypes = build_step("bf16", weights_dtype=weights_dtype), []
    step.model.register_forward_hook(lambda module, args, logits: logit_dtypes.append(logits.dtype))
    loss = step.forward().item()
    step.backward()
    kept = [*step.model.parameters(), *gradients(step)]
    step.optimizer_step()
    kept += [state["exp_avg"] for state in step.optimizer.state.values()]
    assert logit_dtypes == [torch.bfloat16]
    assert {tensor.dtype for tensor in kept} == {weights_dtype}
    assert {buffer.dtype for buffer in step.model.buffers()} == {torch.float32}
    assert loss == pytest.approx(build_step().run().item(), rel=0.01)


def test_backward_uses_the_matmul_precision_without_autocast():
    step, seen = build_step("tf32"), []
    step.model.lm_head.weight.register_hook(
        lambda gradient: seen.append((torch.get_float32_matmul_precision(), torch.is_autocast_enabled("cpu")))
    )
    step.forward()
    step.backward()
    assert seen == [("high", False)]


def test_a_loss_serves_one_backward_pass_and_is_freed_before_the_next_forward():
    step = build_step()
    loss, left = weakref.ref(step.forward()), []
    step.model.register_forward_pre_hook(lambda *_: left.append(loss()))
    step.forward()
    assert left == [None]
    step.backward()
    with pytest.raises(RuntimeError, match="needs a forward"):
        step.backward()


def test_ranges_name_the_phases_in_order():
    names = []
    with listening(lambda name: names.append(name) or nullcontext()):
        build_step().run()
    layer = ["attention", "attention scores", "mask", "softmax", "final matmul"]
    assert names == ["forward", *layer * SIZE.num_layers, "loss", "backward", "optimizer"]


def test_compiled_step_equals_the_eager_step_and_all_its_blocks_share_one_compilation(monkeypatch):
    # This tests tracing and graphs only: generating code takes half a minute and is torch's responsibility.
    monkeypatch.setattr(torch.nn.Module, "compile", partialmethod(torch.nn.Module.compile, backend="aot_eager"))
    torch._dynamo.reset()
    counters.clear()
    eager, compiled = build_step(), build_step(compiled=True)
    for _ in range(2):
        torch.testing.assert_close(compiled.run(), eager.run())
    torch.testing.assert_close(list(compiled.model.parameters()), list(eager.model.parameters()), rtol=1e-4, atol=1e-4)
    assert type(compiled.model) is type(eager.model)  # itself eager: only its blocks are compiled
    assert counters["stats"]["unique_graphs"] == 1 < SIZE.num_layers


def test_gradients_are_finished_between_backward_and_optimizer():
    seen, step = [], build_step()
    step = replace(step, finish_gradients=lambda: seen.append([grad.clone() for grad in gradients(step)]))
    before = step.model.token_embedding.weight.detach().clone()
    step.run()
    assert len(seen) == 1
    assert all(torch.isfinite(grad).all() for grad in seen[0])
    assert not torch.equal(step.model.token_embedding.weight, before)
