import contextlib
import itertools

import pytest
import torch

from pipeline.tf32 import allows_tf32, float32_products

READ = {
    "old API": torch.get_float32_matmul_precision,
    "old API of CUDA": lambda: torch.backends.cuda.matmul.allow_tf32,
    "all": lambda: torch.backends.fp32_precision,
    "CUDA": lambda: torch.backends.cudnn.fp32_precision,
    "CUDA's products": lambda: torch.backends.cuda.matmul.fp32_precision,
    "CUDA's convolutions": lambda: torch.backends.cudnn.conv.fp32_precision,
    "oneDNN": lambda: torch.backends.mkldnn.fp32_precision,
    "oneDNN's products": lambda: torch.backends.mkldnn.matmul.fp32_precision,
}


def settings():
    """Return the value of each of torch's names for the switch, None if it cannot be read."""
    values = dict.fromkeys(READ)
    for name, read in READ.items():
        with contextlib.suppress(RuntimeError):
            values[name] = read()
    return values


def settings_and_what_follows_from_others():
    """Return the settings, and again after each change of a setting that others inherit."""
    values = [settings()]
    for backend, setting in itertools.product(["cuda", "mkldnn", "generic"], ["ieee", "tf32", "none"]):
        torch._C._set_fp32_precision_setter(backend, "all", setting)
        values.append(settings())
    return values


def test_the_switch_is_read_whichever_api_set_it(tf32_switch):
    before = settings()
    assert allows_tf32() == tf32_switch.allows_tf32
    assert settings() == before


@pytest.mark.parametrize("tf32", [False, True])
def test_inside_the_context_both_apis_show_the_requested_precision(tf32_switch, tf32):
    with float32_products(tf32=tf32):
        assert allows_tf32() == torch.backends.cuda.matmul.allow_tf32 == tf32
        assert torch.get_float32_matmul_precision() == ("high" if tf32 else "highest")
        for backend in (torch.backends.cuda, torch.backends.mkldnn):
            assert backend.matmul.fp32_precision == ("tf32" if tf32 else "ieee")


@pytest.mark.parametrize("tf32", [False, True])
def test_the_context_restores_everything_the_user_set(tf32_switch, tf32):
    expected = settings_and_what_follows_from_others()
    tf32_switch.set()
    with pytest.raises(KeyError), float32_products(tf32=tf32):
        raise KeyError
    assert settings_and_what_follows_from_others() == expected
