"""What is used of a tensor's private names is there and means what it did."""

import pytest
import torch

from pipeline.compat.torch_tensors import base_of, has_gradient_hooks


@pytest.mark.parametrize("register", [torch.Tensor.register_hook, torch.Tensor.register_post_accumulate_grad_hook])
def test_both_kinds_of_gradient_hooks_are_found_until_they_are_removed(register):
    weight = torch.nn.Parameter(torch.ones(2))
    assert not has_gradient_hooks(weight)
    hook = register(weight, lambda _: None)
    assert has_gradient_hooks(weight)
    hook.remove()
    assert not has_gradient_hooks(weight)


def test_a_view_of_a_view_has_the_base_of_both():
    x = torch.ones(2, 3)
    assert base_of(x.view(6)[1:]) is x
    assert base_of(x) is x
