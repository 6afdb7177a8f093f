import copy
from unittest.mock import Mock

import pytest
import torch
from torch.nn import functional

from pipeline.attention import ATTENTION
from pipeline.formulas.fused_step import LEVELS, FusedStep
from pipeline.formulas.sizes import ModelSize
from pipeline.instruments.memory.saved_tensors import saved_bytes
from pipeline.model.fused.language_model import FusedLM
from pipeline.model.fused.operations import in_torch, in_triton
from pipeline.model.transformer import TransformerLM

from ..executed import Executed
from .reference import DEVICE, error

VOCAB, SEQ, WIDTH, HEADS, D_FF, LAYERS = 101, 12, 24, 3, 40, 2


@pytest.fixture
def model():
    torch.manual_seed(0)
    with torch.device(DEVICE):
        return TransformerLM(VOCAB, SEQ, d_model=WIDTH, num_layers=LAYERS, num_heads=HEADS, d_ff=D_FF)


@pytest.fixture
def batch():
    return torch.randint(VOCAB, (2, 2, SEQ), generator=torch.Generator().manual_seed(0)).to(DEVICE)


def losses_of_equal_gradients(fused, plain, batch, within):
    tokens, targets = batch
    losses = fused(tokens, targets), functional.cross_entropy(plain(tokens).flatten(0, 1), targets.flatten())
    for loss in losses:
        loss.backward()
    # Both have the same modules, so their parameters come in the same order.
    for parameter, reference in zip(fused.parameters(), plain.parameters(), strict=True):
        assert error(parameter.grad, reference.grad.double()) < within
    return losses


@pytest.mark.parametrize(
    ("operations", "levels"),
    [
        *((in_torch, [level] * LAYERS) for level in LEVELS),
        (in_torch, ["attention", "gate_up"]),
        (in_triton, ["qkv", "gate_up"]),
    ],
)
def test_loss_and_gradients_equal_the_plain_models(model, batch, operations, levels):
    fused = FusedLM(copy.deepcopy(model), operations(), ATTENTION["eager"], levels)
    loss, expected = losses_of_equal_gradients(fused, model.double(), batch, within=2e-6)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)


@pytest.mark.parametrize("more", [{}, {"head_dim": 24}, {"tie_embeddings": True}])
def test_shared_keys_explicit_head_widths_and_tied_embeddings_are_supported(batch, more):
    with torch.device(DEVICE):
        model = TransformerLM(VOCAB, SEQ, WIDTH, 1, num_heads=4, d_ff=D_FF, num_kv_heads=2, **more)
    fused = FusedLM(copy.deepcopy(model), in_torch(), ATTENTION["sdpa"], ["gate_up"])
    losses_of_equal_gradients(fused, model, batch, within=1e-5)


@pytest.mark.skipif(DEVICE == "cuda", reason="a GPU's kernels of torch pad the log-sum-exp")
def test_a_layer_keeps_as_many_bytes_as_the_formula_says(model, batch):
    fused = FusedLM(model.bfloat16(), in_torch(), ATTENTION["sdpa"], ["qkv"] * LAYERS)
    x = fused.token_embedding(batch[0])
    size = ModelSize(WIDTH, D_FF, LAYERS, HEADS)
    formula = FusedStep(size, VOCAB, batch[0].numel(), world_size=1, logits_bytes=0)
    inputs = [x, *fused.parameters(), *fused.buffers()]
    for level in ("qkv", "gate_up"):
        fused.keep([level] * LAYERS)
        assert saved_bytes(lambda: fused.layers[-1](x), inputs) == formula.kept_bytes(level) - x.nbytes


# How often attention runs, and how many products run beyond the minimum.
RUNS_AGAIN = {"input": (2, 6), "attention": (1, 6), "qkv": (1, 2), "gate_up": (1, 0)}


@pytest.mark.skipif(DEVICE == "cuda", reason="counts the operators of a CPU")
def test_a_layer_recomputes_only_what_it_does_not_keep(model, batch):
    fused = FusedLM(model, in_torch(), ATTENTION["sdpa"], ["gate_up"] * LAYERS)
    layer, x = fused.blocks[-1], fused.token_embedding(batch[0]).detach().requires_grad_()
    found = {}
    for level in RUNS_AGAIN:
        layer.keeps = level
        with Executed() as executed:
            layer(x).sum().backward()
        products = executed.counts["aten::mm"] + executed.counts["aten::addmm"]
        found[level] = executed.counts["aten::_scaled_dot_product_flash_attention_for_cpu"], products
    least = found["gate_up"][1]
    assert {level: (attention, products - least) for level, (attention, products) in found.items()} == RUNS_AGAIN


@pytest.mark.gpu
def test_on_a_gpu_levels_have_equal_gradients_and_keeping_less_saves_memory():
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = TransformerLM(1000, 1024, d_model=256, num_layers=4, num_heads=4, d_ff=704).bfloat16()
    fused = FusedLM(model, in_triton(), ATTENTION["flash"], ["gate_up"] * 4)
    tokens, targets = torch.randint(1000, (2, 2, 1024), device="cuda")
    peaks, gradients = [], []
    for level in (LEVELS[-1], *LEVELS):  # the first one compiles
        fused.keep([level] * 4)
        fused.zero_grad()
        torch.cuda.reset_peak_memory_stats()
        fused(tokens, targets).backward()
        peaks.append(torch.cuda.max_memory_allocated())
        gradients.append([parameter.grad.double() for parameter in fused.parameters()])
    for found in gradients[1:]:  # dq is summed in no fixed order
        assert all(error(one, other) < 2e-3 for one, other in zip(found, gradients[0], strict=True))
    assert sorted(peaks[1:]) == peaks[1:]


def test_use_switches_operations_and_attention(model, batch):
    fused = FusedLM(model, in_torch(), ATTENTION["eager"], ["qkv"] * LAYERS)
    expected = fused(*batch)
    attention = Mock(wraps=ATTENTION["eager"])
    fused.use(in_triton(), attention)
    torch.testing.assert_close(fused(*batch), expected)
    assert attention.call_count == LAYERS
