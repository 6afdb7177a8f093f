import pytest
import torch

from pipeline.attention import eager_attention
from pipeline.formulas.activation_parts import attention_bytes, bytes_by_part
from pipeline.formulas.activations import Workload, saved_terms
from pipeline.formulas.sizes import ModelSize
from pipeline.instruments.memory.saved_tensors import saved_bytes
from pipeline.model.step import build_training_step

SIZE = ModelSize(d_model=32, d_ff=56, num_layers=2, num_heads=2)


def workload(attention="eager", seq_len=16, **others):
    return Workload(SIZE, vocab_size=40, batch_size=2, seq_len=seq_len, attention=attention, **others)


def model_bytes(work):
    step = build_training_step(
        work.size,
        vocab_size=work.vocab_size,
        context_length=work.seq_len,
        batch_size=work.batch_size,
        precision=work.precision,
        device=work.device_type,
        attention=work.attention,
    )
    return saved_bytes(step.forward, [*step.model.parameters(), *step.model.buffers(), step.tokens, step.targets])


INTERPRETED = pytest.mark.skipif(torch.cuda.is_available(), reason="where there is a GPU, Triton runs on it alone")


@pytest.mark.parametrize("attention", ["eager", "tiled", pytest.param("flash", marks=INTERPRETED)])
def test_the_model_keeps_what_its_parts_add_up_to(attention):
    work = workload(attention, device_type="cpu")
    assert model_bytes(work) == sum(bytes_by_part(work).values())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("attention", ["eager", "tiled", "flash"])
def test_on_a_gpu_the_model_keeps_what_its_parts_add_up_to(attention):
    work = workload(attention)
    assert model_bytes(work) == sum(bytes_by_part(work).values())


@pytest.mark.parametrize("attention", ["eager", "flash"])
def test_the_parts_are_all_the_terms_but_the_copies_of_weights(attention):
    terms = saved_terms(workload(attention, precision="bf16"))
    copies = terms.pop("bf16 copies of weights")
    assert copies > 0
    assert sum(bytes_by_part(workload(attention, precision="bf16")).values()) == sum(terms.values())


@pytest.mark.parametrize(("attention", "of_a_query"), [("eager", 16), ("flash", 1)])
def test_scores_are_a_row_of_the_softmax_or_one_log_sum_exp_a_query(attention, of_a_query):
    queries = SIZE.num_layers * 2 * SIZE.num_heads * 16
    assert bytes_by_part(workload(attention))["scores"] == 4 * queries * of_a_query


def test_eager_attention_keeps_the_softmax_and_its_inputs():
    q, k, v = torch.randn(3, 2, SIZE.num_heads, 16, 16).unbind()
    for tensor in (q, k, v):
        tensor.requires_grad_()
    counted = attention_bytes(workload())
    assert counted["inputs"] == q.nbytes + k.nbytes + v.nbytes
    # k and v are views of what is kept anyway; the scaled queries take the place of q.
    kept = saved_bytes(lambda: eager_attention(q.clone(), k.clone(), v.clone(), True), [])
    assert kept == counted["inputs"] + counted["kept"]


def test_eager_attention_has_scores_and_softmax_at_once_and_flash_no_more_than_it_keeps():
    eager, flash = (attention_bytes(workload(kind)) for kind in ("eager", "flash"))
    assert eager["most"] == 2 * 4 * 2 * SIZE.num_heads * 16**2
    assert flash["most"] == flash["kept"]


def test_doubling_the_length_quadruples_what_eager_attention_keeps_and_doubles_what_flash_does():
    kept = {kind: [attention_bytes(workload(kind, n))["kept"] for n in (512, 1024)] for kind in ("eager", "flash")}
    assert kept["eager"][1] == 4 * kept["eager"][0]
    assert kept["flash"][1] == 2 * kept["flash"][0]
