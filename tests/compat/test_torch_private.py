"""Check that torch's private names still exist and mean the same, because an upgrade may move any of them."""

import importlib.util
import operator

import pytest
import torch
import torch.distributed.distributed_c10d
import torch.distributed.tensor.experimental
from torch.profiler import ProfilerActivity, profile

from pipeline.compat import torch_private
from pipeline.compat.torch_private import base_of, has_gradient_hooks
from pipeline.worker.child import PRELOADED

# Names that `torch_private` does not already use when it is imported.
PATHS = (
    *(f"_C._profiler._EventType.{kind}" for kind in ("Allocation", "PyCCall", "PyCall", "TorchOp")),
    *("_C._current_graph_task_id", "_C._has_cudnn", "_C._storage_Use_Count", "_fused_sdp_choice"),
    *("cuda.memory._dump_snapshot", "cuda.memory._record_memory_history"),
    *("distributed.distributed_c10d._coalescing_manager", "distributed.tensor.experimental.context_parallel"),
)


def test_torch_still_has_every_private_name_and_preloaded_module():
    for path in PATHS:
        assert operator.attrgetter(path)(torch) is not None, "pipeline.compat.torch_private needs another way"
    assert [name for name in PRELOADED if "torch._" in name and not importlib.util.find_spec(name)] == []


def test_parameters_can_be_replaced_and_nested_tensors_are_found():
    layer, x, y = torch.nn.Linear(2, 2), torch.ones(1), torch.zeros(1)
    torch_private.parameters_of(layer)["weight"] = x
    assert layer.weight is x
    assert torch_private.tensors_in({"out": (x, [1, None]), "state": {"inner": y}}) == [x, y]


def test_nodes_are_numbered_in_order_and_a_backward_pass_is_detected():
    first = torch_private.next_node_number()
    y, seen = torch.ones(1, requires_grad=True) * 2, []
    assert (torch_private.node_number(y.grad_fn), torch_private.next_node_number()) == (first, first + 1)
    y.register_hook(lambda _: seen.append(torch_private.in_backward()))
    y.backward()
    assert [*seen, torch_private.in_backward()] == [True, False]


def test_a_profile_gives_its_events_flat_and_as_a_tree():
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        torch.ones(2) + 1
    assert "aten::add" in [event.name() for event in torch_private.profiler_events(seen)]
    assert "aten::add" in [node.name for node in torch_private.profiler_tree(seen)]


@pytest.mark.parametrize("register", [torch.Tensor.register_hook, torch.Tensor.register_post_accumulate_grad_hook])
def test_both_kinds_of_gradient_hooks_are_found_until_they_are_removed(register):
    weight = torch.nn.Parameter(torch.ones(2))
    found = [has_gradient_hooks(weight)]
    hook = register(weight, lambda _: None)
    found.append(has_gradient_hooks(weight))
    hook.remove()
    assert [*found, has_gradient_hooks(weight)] == [False, True, False]


def test_a_view_of_a_view_has_the_same_base_and_adds_one_storage_use():
    x = torch.ones(2, 3)
    alone = torch_private.storage_uses(x)
    view = x.view(6)[1:]
    assert base_of(view) is base_of(x) is x
    assert torch_private.storage_uses(x) == torch_private.storage_uses(view) == alone + 1
