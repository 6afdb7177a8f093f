import warnings

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask

from pipeline.formulas.attention import Shape
from pipeline.stages.flash import implementations

CPU = torch.device("cpu")


@pytest.mark.parametrize("seq_len", [64, 128, 1000, 1024])
def test_the_causal_block_mask_matches_torchs_create_block_mask(seq_len):
    ours = implementations.causal_block_mask(seq_len, CPU)
    torchs = create_block_mask(ours.mask_mod, None, None, seq_len, seq_len, device="cpu")
    assert ours.shape == torchs.shape
    assert torch.equal(ours.to_dense(), torchs.to_dense())
    if seq_len % implementations.FLEX_BLOCK == 0:  # else torch treats rows beyond the end as masked
        for blocks in ("kv_num_blocks", "full_kv_num_blocks", "full_q_num_blocks"):
            assert torch.equal(getattr(ours, blocks), getattr(torchs, blocks)), blocks


REFUSALS = {
    "sdpa_flash": (RuntimeError("No available kernel. Aborting execution."), r"Expected query .* dtype: \{Half\}\.$"),
    "flex": (RuntimeError("InductorError: wrapped\nout of resource: shared memory, Required: 9"), "out of resource"),
    "tiled": (ValueError("head_dim is 48: must be one of 16, 32"), "head_dim is 48: must be one of 16, 32$"),
    "fa4": (AssertionError("inputs must be bfloat16"), "flash-attn-4 raises AssertionError: inputs must be bfloat16$"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_refusal_is_skipped_with_its_reason(name):
    error, reason = REFUSALS[name]

    def refuse():
        warnings.warn("Flash attention kernel not used because: (Triggered internally at x.cpp:1)", stacklevel=1)
        warnings.warn("Expected query to be of dtype: {Half}. (Triggered internally at x.cpp:2)", stacklevel=1)
        raise error

    with pytest.raises(implementations.Skipped, match=f"^{reason}"), implementations.refusals_as_skipped(name):
        refuse()


@pytest.mark.parametrize(
    ("allowed", "name"), [([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH], "sdpa_flash"), ([SDPBackend.MATH], None)]
)
def test_sdpas_choice_is_the_backend_it_picks_from_those_allowed(allowed, name):
    q = torch.randn(1, 1, 32, 16)
    with sdpa_kernel(allowed):
        assert implementations.chosen_by_sdpa(q, q, q, Shape(1, 1, 32, 16, True)) == name


def test_our_kernels_get_shared_keys_without_copies(monkeypatch):
    seen = []
    monkeypatch.setattr(implementations, "GPU_ONLY", ())
    monkeypatch.setitem(implementations.FUNCTIONS, "triton", lambda *arguments: seen.append(arguments))
    q, k = torch.randn(1, 4, 16, 8), torch.randn(1, 2, 16, 8)
    implementations.build("triton", Shape(1, 4, 16, 8, True, 2), CPU).attend(q, k, k)
    ((*tensors, is_causal, scale, enable_gqa),) = seen
    assert all(one is other for one, other in zip(tensors, (q, k, k), strict=True))
    assert (is_causal, scale, enable_gqa) == (True, None, True)
