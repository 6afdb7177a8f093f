import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from pipeline.instruments.profilers.collective_traffic import CollectiveLog, total_bytes
from pipeline.parallel.processes.starting import run_ranks


@pytest.fixture(scope="module")
def seen():
    """What rank 0 noted, by what the ranks did in one start of theirs."""
    return run_ranks(everything, 2, backend="gloo")[0]


def everything(context):
    return call_each_kind(), train_with_torchs_ddp(), divide_a_layer(context)


def call_each_kind():
    with CollectiveLog() as log:
        dist.all_reduce(torch.ones(10))
        dist.broadcast(torch.ones(3, dtype=torch.float64), src=0)
        dist.all_gather([torch.empty(5), torch.empty(5)], torch.ones(5))
        dist.all_reduce(torch.ones(2, dtype=torch.int32), async_op=True).wait()
        torch.ones(4) + 1
    dist.all_reduce(torch.ones(100))
    return log.calls


def test_each_collective_inside_is_noted_with_its_payload_and_dtype(seen):
    calls, *_ = seen
    found = [(call.name, call.payload_bytes, call.dtype) for call in calls]
    assert found == [
        ("allreduce", 40, torch.float32),
        ("broadcast", 24, torch.float64),
        ("allgather", 40, torch.float32),
        ("allreduce", 8, torch.int32),
    ]
    assert total_bytes(calls) == 112


def train_with_torchs_ddp():
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(40, 40), nn.Linear(40, 40)))
    for _ in range(3):
        with CollectiveLog() as log:
            model(torch.randn(2, 40)).sum().backward()
    return log.calls


def test_collectives_that_torchs_own_hooks_start_are_noted(seen):
    _, calls, _ = seen
    assert [call.name for call in calls] == ["allreduce"]
    assert total_bytes(calls) == 2 * (40 * 40 + 40) * 4


def divide_a_layer(context):
    mesh = init_device_mesh("cpu", (context.world_size,))
    layers = nn.Sequential(nn.Linear(8, 16, bias=False), nn.Linear(16, 8, bias=False))
    parallelize_module(layers, mesh, {"0": ColwiseParallel(), "1": RowwiseParallel(output_layouts=Shard(0))})
    with CollectiveLog() as log:
        layers(torch.ones(4, 8, requires_grad=True)).sum().backward()
    return [(call.name, call.payload_bytes) for call in log.calls]


def test_what_dtensors_send_is_noted_by_the_same_names(seen):
    *_, found = seen
    # The output scattered; its gradient gathered; the input's gradient summed.
    assert found == [("reduce_scatter_base", 128), ("allgather_base", 128), ("allreduce", 128)]
