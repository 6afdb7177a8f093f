import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from pipeline.instruments.profilers.collective_traffic import CollectiveLog
from pipeline.parallel.processes.starting import run_ranks

FP32, FP64, INT32 = torch.float32, torch.float64, torch.int32


def call_each_kind(_context):
    with CollectiveLog() as log:
        dist.all_reduce(torch.ones(10))
        dist.broadcast(torch.ones(3, dtype=FP64), src=0)
        dist.all_gather([torch.empty(5), torch.empty(5)], torch.ones(5))
        dist.all_reduce(torch.ones(2, dtype=INT32), async_op=True).wait()
        torch.ones(4) + 1
    dist.all_reduce(torch.ones(100))
    return log.calls


def train_with_torchs_ddp(_context):
    model = DistributedDataParallel(nn.Sequential(nn.Linear(40, 40), nn.Linear(40, 40)))
    for _ in range(3):
        with CollectiveLog() as log:
            model(torch.randn(2, 40)).sum().backward()
    return log.calls


def divide_a_layer(context):
    mesh = init_device_mesh("cpu", (context.world_size,))
    layers = nn.Sequential(nn.Linear(8, 16, bias=False), nn.Linear(16, 8, bias=False))
    parallelize_module(layers, mesh, {"0": ColwiseParallel(), "1": RowwiseParallel(output_layouts=Shard(0))})
    with CollectiveLog() as log:
        layers(torch.ones(4, 8, requires_grad=True)).sum().backward()
    return log.calls


def noted(context):
    return [do(context) for do in (call_each_kind, train_with_torchs_ddp, divide_a_layer)]


def test_each_collective_is_logged_with_its_payload_and_dtype_whoever_starts_it():
    found = [
        [(call.name, call.payload_bytes, call.dtype) for call in calls]
        for calls in run_ranks(noted, 2, backend="gloo")[0]
    ]
    assert found == [
        [("allreduce", 40, FP32), ("broadcast", 24, FP64), ("allgather", 40, FP32), ("allreduce", 8, INT32)],
        [("allreduce", 2 * (40 * 40 + 40) * 4, FP32)],
        # The output scattered; its gradient gathered; the input's gradient summed.
        [("reduce_scatter_base", 128, FP32), ("allgather_base", 128, FP32), ("allreduce", 128, FP32)],
    ]
