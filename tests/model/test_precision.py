import pytest
import torch

from pipeline.model.precision import PRECISIONS, matmul_precision, precision_context
from pipeline.tf32 import allows_tf32


@pytest.mark.parametrize("precision", PRECISIONS)
def test_precision_sets_fp32_products_and_autocast_whatever_was_set(tf32_switch, precision):
    with precision_context(precision, "cpu"):
        assert torch.get_float32_matmul_precision() == ("high" if precision == "tf32" else "highest")
        assert torch.backends.cuda.matmul.allow_tf32 == (precision == "tf32")
        assert torch.is_autocast_enabled("cpu") == (precision == "bf16")


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_former_state_is_restored_even_after_an_exception(precision, tf32_switch):
    with pytest.raises(KeyError), precision_context(precision, "cpu"):
        raise KeyError
    assert allows_tf32() == tf32_switch.allows_tf32
    assert not torch.is_autocast_enabled("cpu")


def test_matmul_precision_leaves_autocast_alone_and_refuses_unknown_names():
    with matmul_precision("bf16"):
        assert not torch.is_autocast_enabled("cpu")
    message = "^precision='fp8': must be one of fp32, bf16, tf32$"
    with pytest.raises(ValueError, match=message), precision_context("fp8", "cpu"):
        pass
