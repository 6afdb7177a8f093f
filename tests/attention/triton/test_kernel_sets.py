import pytest
import torch

from pipeline.attention.inputs import Traits
from pipeline.attention.triton import gpu, kernel_sets
from pipeline.attention.triton.kernel_sets import VARIABLE, backward_kernels, forward_kernels, kernels_of
from pipeline.attention.triton.mask import CAUSAL, FULL, Band
from pipeline.attention.triton.problem import Problem
from tools.tuning.every_gpu import GPUS

GPU = torch.device("cuda", 0)
IS_PLAIN_ASKED = kernel_sets.is_plain_asked


@pytest.fixture(autouse=True)
def hopper(monkeypatch):
    monkeypatch.setattr(kernel_sets, "is_interpreted", lambda: False)
    monkeypatch.setattr(gpu, "_gpu_of", lambda _device: GPUS["sm_90"])
    monkeypatch.setattr(kernel_sets, "is_plain_asked", lambda: False)


def traits(shape=(4, 16, 4096, 128), dtype=torch.bfloat16, stride=None, device=GPU):
    return Traits(torch.Size(shape), stride or torch.empty(shape, device="meta").stride(), dtype, device)


def chosen(q, k=None, do=None, repeatable=False, band=CAUSAL, one_tf32_product=False):
    k, do = k or q, do or q
    problem = Problem(q, k, k, None, band, q.shape[-1] ** -0.5, one_tf32_product, 0)
    return forward_kernels(problem), backward_kernels(problem, do, repeatable)


def names(*given, **more):
    return [found.name for found in chosen(*given, **more)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("head_dim", [40, 64, 80, 128, 256])
@pytest.mark.parametrize("shape", [(4, 16, 4096), (16, 12, 1024), (128, 1000)])
def test_shapes_of_models_get_gluon_kernels_in_both_passes(shape, head_dim, dtype):
    assert names(traits((*shape, head_dim), dtype)) == ["gluon", "gluon"]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (traits((4, 16, 4096, 256), torch.float32), "head_dim 256"),
        (traits((4, 16, 4096, 100), torch.float32), "head_dim 100"),
        (traits((64, 16, 100, 128), torch.float32), "fewer than 256 queries or keys"),
        (traits((1, 1, 8192, 128), torch.float32), "64 tiles for 132 multiprocessors"),
        (traits((4, 16, 4096, 32)), "head_dim 32"),
        (traits((4, 16, 4096, 100)), "head_dim 100"),
        (traits((64, 16, 200, 128)), "fewer than 256 queries or keys"),
        (traits((1, 1, 8192, 128)), "64 tiles for 132 multiprocessors"),
        (traits(stride=(0, 4096 * 128, 128, 1)), "strides that the copy engine cannot take"),
        (traits(stride=(16 * 4096 * 129, 4096 * 129, 129, 1)), "strides that the copy engine cannot take"),
        (traits(device=torch.device("cpu")), "no GPU"),
    ],
)
def test_other_inputs_get_plain_kernels_and_a_reason(given, reason):
    assert chosen(given) == (("plain", reason), ("plain", reason))


def test_gluon_takes_shared_keys_and_full_attention_but_no_other_mask():
    q, kv = traits((4, 32, 4096, 128)), traits((4, 8, 4096, 128))
    assert names(q, kv) == names(q, band=FULL) == ["gluon", "gluon"]
    reason = "a mask that is neither full nor causal from the top left"
    for band in (Band(None, 5), Band(-99, 1), Band(-99, None)):
        assert [found.reason for found in chosen(q, band=band)] == [reason] * 2


def test_expanded_gradients_and_repeatable_dq_of_narrow_heads_get_plain_kernels():
    q = traits()
    expanded = traits(stride=(16 * 4096 * 128, 0, 128, 1))
    assert names(q, do=expanded) == names(q, repeatable=True) == ["gluon", "plain"]
    assert "torch.use_deterministic_algorithms" in chosen(q, repeatable=True)[1].reason
    # The dq of wide heads is summed in a fixed order.
    assert names(traits((4, 16, 4096, 256)), repeatable=True) == ["gluon", "gluon"]


def test_fp32_gets_gluon_kernels_in_both_passes_or_neither_whatever_its_strides():
    q = traits(dtype=torch.float32)
    expanded = traits(dtype=torch.float32, stride=(16 * 4096 * 128, 0, 128, 1))
    assert names(q) == names(q, do=expanded) == names(expanded) == names(q, repeatable=True) == ["gluon", "gluon"]
    # Few queries with many keys, and the reverse: only one of the two passes would fill the GPU.
    few, many = (traits((1, 16, length, 128), torch.float32) for length in (256, 8192))
    assert names(few, many) == names(many, few) == ["plain", "plain"]
    assert {found.reason for found in chosen(q, one_tf32_product=True)} == {"fp32 multiplied as one TF32 product"}


def test_other_gpus_tritons_without_gluon_and_the_variable_get_plain_kernels(monkeypatch):
    def reasons(name, value):
        with monkeypatch.context() as patch:
            patch.setattr(kernel_sets, name, lambda *_device: value)
            return {found.reason for found in chosen(traits())}

    assert reasons("gpu_of", GPUS["sm_100"]) == {"no Hopper GPU"}
    assert reasons("is_plain_asked", True) == {"PIPELINE_ATTENTION=tl"}
    assert all("has no Gluon" in reason for reason in reasons("has_gluon", False))


def test_the_environment_variable_is_read_once_per_process(monkeypatch):
    for asked in ("tl", "gluon"):
        monkeypatch.setenv(VARIABLE, asked)
        IS_PLAIN_ASKED.cache_clear()
        assert IS_PLAIN_ASKED() == (asked == "tl")
        monkeypatch.delenv(VARIABLE)
        assert IS_PLAIN_ASKED() == (asked == "tl")
    IS_PLAIN_ASKED.cache_clear()


def test_kernels_of_takes_tensors():
    q = torch.empty(1, 2, 64, 128)
    found = kernels_of(q, q, q)
    assert found.forward == found.backward == ("plain", "no GPU")
