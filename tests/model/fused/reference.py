"""Draw inputs at unaligned addresses, and compute a result's error against float64."""

import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# The norm of the error over that of the result. Triton's interpreter truncates fp32 to bf16 where a GPU rounds.
ALLOWED = {torch.float32: 1e-6, torch.bfloat16: 8e-3}


def normal(*shape, dtype=torch.float32, seed=0):
    """Draw normal numbers that start one element past an aligned address."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(shape, generator=generator).to(DEVICE, dtype)
    place = torch.empty(drawn.numel() + 1, dtype=dtype, device=DEVICE)[1:].view(shape)
    return place.copy_(drawn)


def error(found, exact):
    """Return the norm of the difference over the norm of the exact result; NaN if anything was not written."""
    exact = exact.to(found.device)
    return ((found.double() - exact).norm() / exact.norm()).item()


def gradients(function, inputs, upstream):
    """Differentiate in float64: return the output and the gradients of all inputs."""
    exact = [tensor.double().requires_grad_() for tensor in inputs]
    output = function(*exact)
    return output.detach(), torch.autograd.grad(output, exact, upstream.double())
