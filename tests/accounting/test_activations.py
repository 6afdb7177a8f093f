import pytest
import torch

from pipeline.accounting.activations import attention_elements, transformer_elements
from pipeline.attention import eager_attention
from pipeline.model.sizes import ModelSize
from pipeline.model.step import build_training_step

SIZE, VOCAB_SIZE = ModelSize(d_model=32, d_ff=56, num_layers=2, num_heads=2), 40
BATCH_SIZE, SEQ_LEN = 2, 16


def kept_bytes(function, not_counted=()):
    """Return the bytes of all storages that autograd saves while a function runs, each once."""
    own = {tensor.untyped_storage().data_ptr() for tensor in not_counted}
    kept = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = (storage.nbytes(), tensor)  # the tensor, so that its address is not used again
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        result = function()
    del result
    return sum(nbytes for nbytes, _ in kept.values())


def model_bytes(attention, device):
    step = build_training_step(
        SIZE,
        vocab_size=VOCAB_SIZE,
        context_length=SEQ_LEN,
        batch_size=BATCH_SIZE,
        precision="fp32",
        device=device,
        attention=attention,
    )
    own = [*step.model.parameters(), *step.model.buffers(), step.tokens, step.targets]
    return kept_bytes(step.forward, own)


# The mean of the loss keeps its divisor.
LOSS_BYTES = 4


INTERPRETED = pytest.mark.skipif(torch.cuda.is_available(), reason="where there is a GPU, Triton runs on it alone")
FUNCTIONS = [("eager", "eager"), ("tiled", "flash"), pytest.param("flash", "flash", marks=INTERPRETED)]


@pytest.mark.parametrize(("function", "attention"), FUNCTIONS)
def test_the_model_keeps_what_the_closed_form_counts(function, attention):
    elements = sum(transformer_elements(SIZE, VOCAB_SIZE, BATCH_SIZE, SEQ_LEN, attention).values())
    # On the CPU the norm runs in pieces, and keeps what it normalised.
    norms = (2 * SIZE.num_layers + 1) * SIZE.d_model * BATCH_SIZE * SEQ_LEN
    assert model_bytes(function, "cpu") == 4 * (elements + norms) + LOSS_BYTES


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize(("function", "attention"), [("eager", "eager"), ("tiled", "flash"), ("flash", "flash")])
def test_with_fused_norms_the_model_keeps_what_the_closed_form_counts(function, attention):
    elements = sum(transformer_elements(SIZE, VOCAB_SIZE, BATCH_SIZE, SEQ_LEN, attention).values())
    assert model_bytes(function, "cuda") == 4 * elements + LOSS_BYTES


def test_eager_attention_keeps_the_softmax_and_its_inputs():
    q, k, v = torch.randn(3, BATCH_SIZE, SIZE.num_heads, SEQ_LEN, 4).unbind()
    for tensor in (q, k, v):
        tensor.requires_grad_()
    elements = attention_elements(BATCH_SIZE, SIZE.num_heads, SEQ_LEN, 4)
    assert elements["inputs"] == q.numel() + k.numel() + v.numel()
    # k and v are views of what is kept anyway; the scaled queries take the place of q.
    assert kept_bytes(lambda: eager_attention(q.clone(), k.clone(), v.clone(), True)) == 4 * (
        elements["inputs"] + elements["kept"]
    )


def test_doubling_the_length_quadruples_what_eager_attention_keeps_and_doubles_what_flash_does():
    eager, flash = ([attention_elements(8, 1, n, 64, kind)["kept"] for n in (512, 1024)] for kind in ("eager", "flash"))
    assert eager[1] == 4 * eager[0]
    assert flash[1] == 2 * flash[0]


def test_an_unknown_attention_is_refused():
    with pytest.raises(ValueError, match="attention='slow': must be one of eager, flash"):
        transformer_elements(SIZE, VOCAB_SIZE, 1, 16, "slow")
