"""Divide a step over ranks in different ways, each with PyTorch's own tools."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn.attention import SDPBackend, sdpa_kernel

from pipeline.compat.torch_private import context_parallel
from pipeline.model.step import TrainingStep
from pipeline.model.transformer import (
    CausalSelfAttention,
    RotaryEmbedding,
    SwiGLU,
    TransformerBlock,
    TransformerLM,
)
from pipeline.stages.tensor_parallel.cell import TENSOR_RANKS, Cell, Settings
from pipeline.stages.tensor_parallel.steps import BlockStep, Step, build_whole, inputs_of

# All ways use these kernels: context parallelism supports no others.
KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
SEQUENCE_DIM = 1  # of (batch, seq_len, d_model)


@cache  # each group of ranks takes memory
def _line(device_type: str) -> DeviceMesh:
    """Return a mesh of all ranks along one axis."""
    return init_device_mesh(device_type, (dist.get_world_size(),))


@cache
def _plane(device_type: str) -> DeviceMesh:
    """Return a mesh of all ranks along two axes: FSDP and tensor parallelism."""
    shape = dist.get_world_size() // TENSOR_RANKS, TENSOR_RANKS
    return init_device_mesh(device_type, shape, mesh_dim_names=("fsdp", "tensor"))


def meshes(impl: str, device: torch.device) -> tuple[DeviceMesh | None, DeviceMesh | None]:
    """Return the mesh that shards weights and batch, and the mesh that divides matrices; None if unused."""
    if impl == "fsdp_tensor":
        return _plane(device.type)["fsdp"], _plane(device.type)["tensor"]
    line = None if impl == "none" else _line(device.type)
    return (line, None) if impl in ("fsdp", "context") else (None, line)


def fsdp_ranks(impl: str, device: torch.device) -> int:
    """Return the number of FSDP ranks, each of which takes the mean loss of its own part of the batch."""
    mesh, _ = meshes(impl, device)
    return 1 if mesh is None else mesh.size()


@contextmanager
def divided(impl: str, cell: Cell, settings: Settings, device: torch.device) -> Iterator[Step]:
    """Build the step of a way, to be run inside this context. Every rank must call this."""
    step = build_whole(cell, settings, device)
    if cell.precision == "bf16":
        _cast_what_is_sent(step.model)
    fsdp_mesh, tensor_mesh = meshes(impl, device)
    with ExitStack() as stack:
        stack.enter_context(sdpa_kernel(KERNELS))
        if tensor_mesh is not None:
            parallelize_module(step.model, tensor_mesh, _plan(step.model, impl == "sequence"))
            if isinstance(step, TrainingStep):
                stack.enter_context(loss_parallel())
            elif impl == "sequence":
                own = step.inputs.detach().chunk(tensor_mesh.size(), SEQUENCE_DIM)[tensor_mesh.get_local_rank()]
                step = replace(step, inputs=own.clone().requires_grad_())
        if fsdp_mesh is not None:
            _shard(step.model, fsdp_mesh, cell.precision)
            step = _own_part(impl, step, fsdp_mesh, stack)
        if isinstance(step, TrainingStep):
            step = replace(step, optimizer=torch.optim.AdamW(_alike(step.model), fused=True))
        yield step


def mean_loss(loss: Tensor, step: Step, cell: Cell, num_fsdp_ranks: int) -> float:
    """Return the loss over all ranks, given this rank's. A collective.

    Ranks with the same tokens have the same loss; each FSDP rank has the mean of its own part.
    """
    whole = loss.full_tensor().detach() if isinstance(loss, DTensor) else loss.detach().clone()
    dist.all_reduce(whole)
    inputs = inputs_of(step)
    alike = dist.get_world_size() * inputs.shape[0] * inputs.shape[1] / (cell.batch_size * cell.context_length)
    return whole.item() / (num_fsdp_ranks * alike)


def _plan(model: nn.Module, is_sequence: bool) -> dict[str, ParallelStyle]:
    """Return how each module is divided: its input matrices by columns, its output matrices by rows.

    Attention and the feed-forward network take their input as one tensor, so that its gradient is summed over the
    ranks once, not once per matrix.
    """
    between = Shard(SEQUENCE_DIM) if is_sequence else Replicate()
    block: dict[str, ParallelStyle] = {
        **dict.fromkeys(
            ("attention", "feed_forward"),
            PrepareModuleInput(input_layouts=between, desired_input_layouts=Replicate()),
        ),
        **{f"attention.{name}_proj": ColwiseParallel() for name in "qkv"},
        **{f"feed_forward.{name}_proj": ColwiseParallel() for name in ("gate", "up")},
        **{
            name: RowwiseParallel(output_layouts=between)
            for name in ("attention.output_proj", "feed_forward.down_proj")
        },
    }
    if is_sequence:
        block |= {name: SequenceParallel() for name in ("attention_norm", "feed_forward_norm")}
    if isinstance(model, TransformerBlock):
        return block
    return {
        "token_embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=between),
        **{f"layers.*.{name}": style for name, style in block.items()},
        **({"final_norm": SequenceParallel()} if is_sequence else {}),
        # The logits stay divided along the vocabulary, as `loss_parallel` expects.
        "lm_head": ColwiseParallel(input_layouts=between, use_local_output=False),
    }


def _cast_what_is_sent(model: nn.Module) -> None:
    """Cast the inputs of matrices to bf16 before they are sent: autocast would do so only afterwards."""

    def cast(_module: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        return (arguments[0].to(torch.bfloat16), *arguments[1:])

    for module in model.modules():
        if isinstance(module, CausalSelfAttention | SwiGLU) or module is getattr(model, "lm_head", None):
            module.register_forward_pre_hook(cast)


def _shard(model: nn.Module, mesh: DeviceMesh, precision: str) -> None:
    dtype = torch.bfloat16 if precision == "bf16" else None
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=dtype)
    if isinstance(model, TransformerLM):
        for layer in model.layers:
            fully_shard(layer, mesh=mesh, mp_policy=policy)
    # A single block is gathered again for its backward pass, as each block of a model would be.
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=isinstance(model, TransformerBlock))


def _own_part(impl: str, step: Step, mesh: DeviceMesh, stack: ExitStack) -> Step:
    """Give a rank its part of the batch: some of the sequences, or some of every sequence's tokens."""
    if isinstance(step, TrainingStep):
        tokens, targets = (each.chunk(mesh.size())[mesh.get_local_rank()] for each in (step.tokens, step.targets))
        return replace(step, tokens=tokens, targets=targets)
    if impl == "context":
        inputs, rope = step.inputs.detach(), cast(RotaryEmbedding, step.model.get_submodule("attention.rope"))
        stack.enter_context(context_parallel(mesh, {inputs: SEQUENCE_DIM, rope.cos: 0, rope.sin: 0}))
    else:
        inputs = step.inputs.detach().chunk(mesh.size())[mesh.get_local_rank()].clone()
    # FSDP averages gradients, so each rank's loss must be the mean of its own part.
    return BlockStep(step.model, inputs.detach().requires_grad_(), step.precision, 1 / inputs.numel())


def _alike(model: nn.Module) -> list[dict[str, Any]]:
    """Group the parameters that an optimizer can update together: divided ones, and whole ones."""
    parameters = list(model.parameters())
    groups = [[each for each in parameters if isinstance(each, DTensor) == is_divided] for is_divided in (True, False)]
    return [{"params": group} for group in groups if group]
