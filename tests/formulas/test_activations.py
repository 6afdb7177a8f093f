from dataclasses import replace

import pytest
import torch

from pipeline.attention import eager_attention
from pipeline.formulas.activations import Workload, attention_bytes, bytes_by_part, residual_stream_bytes, saved_bytes
from pipeline.formulas.sizes import SIZES, ModelSize, OwnSize
from pipeline.instruments.memory import saved_tensors

from .models import step_of

SHAPES = {
    "wide": Workload(ModelSize(d_model=32, d_ff=96, num_layers=2, num_heads=2), 50, 3, 8),
    "deep": Workload(ModelSize(d_model=16, d_ff=24, num_layers=5, num_heads=4), 70, 2, 12),
    "shared keys and values": Workload(OwnSize(32, 48, 2, num_heads=8, num_kv_heads=2), 40, 2, 12),
    "wide heads": Workload(OwnSize(32, 48, 2, num_heads=4, num_kv_heads=2, head_dim=12), 40, 2, 12),
    "long": Workload(ModelSize(d_model=24, d_ff=56, num_layers=1, num_heads=2), 30, 1, 40),
}


def count_saved(workload):
    """Run a forward pass; return the bytes of the distinct storages that it keeps, without batch and model."""
    step = step_of(workload)
    return saved_tensors.saved_bytes(
        step.forward, [*step.model.parameters(), *step.model.buffers(), step.tokens, step.targets]
    )


@pytest.mark.parametrize(("attention", "checkpoint_every"), [("eager", 0), ("tiled", 0), ("eager", 1), ("tiled", 2)])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("shape", SHAPES)
def test_saved_bytes_equal_the_counted_tensors(shape, precision, attention, checkpoint_every):
    workload = replace(SHAPES[shape], device_type="cpu", precision=precision, attention=attention)
    workload = replace(workload, checkpoint_every=checkpoint_every)
    assert saved_bytes(workload) == count_saved(workload)


def test_on_cuda_a_norm_saves_one_tensor_less_and_autocast_saves_the_softmax_in_fp32_too():
    cuda = Workload(SIZES["small"], 10_000, 4, 256)
    norms = 2 * SIZES["small"].num_layers + 1
    assert saved_bytes(replace(cuda, device_type="cpu")) - saved_bytes(cuda) == norms * residual_stream_bytes(cuda)
    elements = SIZES["small"].num_layers * cuda.score_elements
    for device_type, of_an_element in (("cuda", 6), ("cpu", 2)):
        found = bytes_by_part(replace(cuda, precision="bf16", device_type=device_type))
        assert found["scores"] == of_an_element * elements
    flash = bytes_by_part(replace(cuda, attention="flash"))
    assert flash["scores"] == 4 * elements / cuda.seq_len  # one LSE per query


SMALL = Workload(ModelSize(d_model=32, d_ff=56, num_layers=2, num_heads=2), vocab_size=40, batch_size=2, seq_len=16)
ON_GPUS = [pytest.param(name, "cuda", marks=pytest.mark.gpu) for name in ("eager", "tiled", "flash")]


@pytest.mark.parametrize(("attention", "device_type"), [("flash", "cpu"), *ON_GPUS])
def test_the_model_saves_the_sum_of_its_parts(attention, device_type):
    if device_type == "cpu" and torch.cuda.is_available():
        pytest.skip("where there is a GPU, Triton runs on it alone")
    workload = replace(SMALL, attention=attention, device_type=device_type)
    assert count_saved(workload) == sum(bytes_by_part(workload).values())


def test_eager_attention_peaks_at_scores_plus_softmax_and_flash_at_what_it_keeps():
    eager, flash = (attention_bytes(replace(SMALL, attention=kind)) for kind in ("eager", "flash"))
    leaves = [torch.randn(2, 2, 16, 16, requires_grad=True) for _ in range(3)]
    assert eager["inputs"] == sum(leaf.nbytes for leaf in leaves)
    # k and v are kept anyway, and the scaled queries instead of q.
    kept = saved_tensors.saved_bytes(lambda: eager_attention(*(leaf.clone() for leaf in leaves), True), [])
    assert kept == eager["inputs"] + eager["kept"]
    assert eager["most"] == 2 * leaves[0].nbytes
    assert flash["most"] == flash["kept"]
