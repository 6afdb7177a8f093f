"""Run torch's ring attention with its CPU kernels, which torch itself does not register for the ring."""

from unittest.mock import patch

import torch
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.experimental._context_parallel import _attention as ring

FORWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


def _backward(grad_out, query, key, value, out, logsumexp, is_causal):
    return BACKWARD(grad_out, query, key, value, out, logsumexp, 0.0, is_causal)


def _handle(operator, arguments, _keywords):
    mesh = arguments[0].device_mesh
    own = [each.to_local() if isinstance(each, DTensor) else each for each in arguments]
    if operator is FORWARD:
        found = ring._templated_ring_attention(mesh.get_group(), 2, FORWARD, *own[:3], is_causal=True)
    else:
        grad_out, *saved = own[:6]
        found = ring._templated_ring_attention_backward(
            mesh.get_group(), 2, _backward, grad_out, "grad_out", *saved, is_causal=True
        )
    return tuple(DTensor.from_local(each.contiguous(), mesh, [Shard(2)], run_check=False) for each in found)


def ring_on_cpu():
    return patch.dict(ring.custom_ops, {FORWARD: _handle, BACKWARD: _handle})
