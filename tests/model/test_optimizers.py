import pytest
import torch

from pipeline.model import optimizers
from pipeline.model.optimizers import Bf16MomentsAdamW, CombinedOptimizer, muon
from pipeline.model.transformer import TransformerLM

STEPS = 12
OPTIONS = {"lr": 1e-2, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 1.0}


def after_steps(make, weights):
    generator = torch.Generator().manual_seed(1)
    weights = [weight.clone().requires_grad_() for weight in weights]
    optimizer = make(weights, **OPTIONS)
    for _ in range(STEPS):
        for weight in weights[:-1]:
            weight.grad = torch.randn(weight.shape, generator=generator, dtype=torch.float64).to(weight)
        optimizer.step()
    return [weight.detach().double().cpu() for weight in weights], optimizer


@pytest.mark.parametrize("update", [optimizers._update, optimizers._update_in_triton])
def test_bf16_moments_update_weights_like_fp32_ones_up_to_rounding(monkeypatch, update):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    start = [torch.randn(shape, dtype=torch.float64) for shape in ((37, 40), (5,), (3,))]
    exact, _ = after_steps(torch.optim.AdamW, start)
    for name in ("_update", "_update_in_triton"):  # the Triton kernel too, without a GPU in the interpreter
        monkeypatch.setattr(optimizers, name, update)
    found, optimizer = after_steps(Bf16MomentsAdamW, [weight.float().to(device) for weight in start])
    for before, wanted, weight in list(zip(start, exact, found, strict=True))[:-1]:
        assert 1e-6 < (weight - wanted).norm() / (wanted - before).norm() < 2.0**-7
    assert torch.equal(found[-1].float(), start[-1].float())
    kept = [each for state in optimizer.state.values() for each in state.values()]
    assert {each.dtype for each in kept} == {torch.bfloat16}


def test_muon_takes_the_matrices_of_blocks_and_adamw_everything_else():
    model = TransformerLM(50, 8, d_model=16, num_layers=2, num_heads=2, d_ff=32)
    optimizer = muon(model, fused=False)
    assert isinstance(optimizer, CombinedOptimizer)
    of_muon, others = ([p for group in each.param_groups for p in group["params"]] for each in optimizer.optimizers)
    assert len(of_muon) == 2 * 7
    norms = [norm for layer in model.layers for norm in (layer.attention_norm, layer.feed_forward_norm)]
    modules = (model.token_embedding, model.lm_head, model.final_norm, *norms)
    assert {id(each) for each in others} == {id(module.weight) for module in modules}


def test_several_optimizers_step_as_one():
    first, second = (torch.ones(3, requires_grad=True) for _ in range(2))
    both = CombinedOptimizer(torch.optim.SGD([first], lr=1.0), torch.optim.SGD([second], lr=1.0))
    for group in both.param_groups:
        group["lr"] = 0.5
    (first.sum() + 2 * second.sum()).backward()
    both.step()
    both.zero_grad()
    assert (first[0].item(), second[0].item()) == (0.5, 0.0)
    assert first.grad is second.grad is None
