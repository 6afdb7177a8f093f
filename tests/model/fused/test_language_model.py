"""The fused model beside the plain one, of the same parameters."""

import copy

import pytest
import torch
from torch.nn import functional

from pipeline.attention import ATTENTION
from pipeline.instruments.memory.saved_tensors import saved_bytes
from pipeline.model.fused.language_model import FusedLM
from pipeline.model.fused.operations import in_torch, in_triton
from pipeline.model.transformer import TransformerLM

from .reference import DEVICE, error

VOCAB, SEQ, WIDTH, HEADS, D_FF, LAYERS = 101, 12, 24, 3, 40, 2


@pytest.fixture(params=[in_triton, in_torch])
def operations(request):
    return request.param()


@pytest.fixture
def model():
    torch.manual_seed(0)
    with torch.device(DEVICE):
        return TransformerLM(VOCAB, SEQ, d_model=WIDTH, num_layers=LAYERS, num_heads=HEADS, d_ff=D_FF)


@pytest.fixture
def batch():
    return torch.randint(VOCAB, (2, 2, SEQ), generator=torch.Generator().manual_seed(0)).to(DEVICE)


@pytest.mark.parametrize("layers_that_keep", [0, 1, LAYERS])
def test_loss_and_all_gradients_are_those_of_the_plain_model(model, batch, operations, layers_that_keep):
    fused = FusedLM(copy.deepcopy(model), operations, ATTENTION["eager"], layers_that_keep)
    tokens, targets = batch
    exact = copy.deepcopy(model).double()
    expected = functional.cross_entropy(exact(tokens).flatten(0, 1), targets.flatten())
    expected.backward()
    loss = fused(tokens, targets)
    loss.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    # The order of the parameters is that of the modules, and the modules are the same.
    for parameter, reference in zip(fused.parameters(), exact.parameters(), strict=True):
        assert error(parameter.grad, reference.grad) < 2e-6


@pytest.mark.parametrize("more", [{}, {"head_dim": 24}, {"tie_embeddings": True}])
def test_query_heads_may_share_keys_and_have_a_width_of_their_own_and_embeddings_may_be_tied(batch, more):
    with torch.device(DEVICE):
        model = TransformerLM(VOCAB, SEQ, WIDTH, 1, num_heads=4, d_ff=D_FF, num_kv_heads=2, **more)
    fused = FusedLM(copy.deepcopy(model), in_torch(), ATTENTION["sdpa"], 1)
    fused(*batch).backward()
    functional.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten()).backward()
    for parameter, reference in zip(fused.parameters(), model.parameters(), strict=True):
        assert error(parameter.grad, reference.grad.double()) < 1e-5


@pytest.mark.skipif(DEVICE == "cuda", reason="a GPU's kernels of torch pad the log-sum-exp")
def test_a_layer_keeps_what_it_says_and_with_its_products_so_much_more(model, batch, operations):
    fused = FusedLM(model, operations, ATTENTION["sdpa"], 0)
    x = fused.token_embedding(batch[0])
    stream = x.nbytes

    def kept(layers):
        fused.keep(layers)
        inputs = [x, *fused.parameters(), *fused.buffers()]
        return saved_bytes(lambda: fused.layers[-1](x), inputs)

    # q, k, v, the output, the sum before the feed-forward norm, and the log-sum-exp; x is an input.
    log_sum_exp = 4 * batch[0].numel() * HEADS
    assert kept(0) == 5 * stream + log_sum_exp
    assert kept(1) == kept(0) + 2 * stream * D_FF // WIDTH


def test_other_operations_and_another_attention_are_taken_up(model, batch):
    fused = FusedLM(model, in_torch(), ATTENTION["eager"], 0)
    expected = fused(*batch)
    called = []

    def attention(q, k, v, is_causal):
        called.append("attention")
        return ATTENTION["eager"](q, k, v, is_causal)

    fused.use(in_triton(), attention)
    torch.testing.assert_close(fused(*batch), expected)
    assert called == ["attention"] * LAYERS
