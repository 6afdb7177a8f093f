"""Check a user's operation against float64: results and gradients, also for numerically hard inputs."""

import copy
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from pipeline.errors import Skipped
from pipeline.formulas.operations import Widths
from pipeline.formulas.sizes import OwnSize
from pipeline.instruments.sampling import error_limits
from pipeline.instruments.sampling.error_limits import FINE_EPS, LIMITS, STEP_EPS, TF32_EPS
from pipeline.model.operation_problems import ADAMW, Errors, Problem, as_tuple
from pipeline.model.operations import DIFFERENTIABLE
from pipeline.parallel.processes.starting import RankContext
from pipeline.subjects.checking import REFUSALS, Verdict, Wrong, is_of_triton
from pipeline.subjects.loading import load
from pipeline.subjects.naming import Subject, operation_of

VOCAB_SIZE = 250
SIZES = {"widths of powers of two": OwnSize(64, 128, 1, 4, 4), "other widths": OwnSize(96, 160, 1, 6, 2)}
SEQUENCES = ((2, 16), (1, 37))
# Inputs that an implementation rarely meets: a description, and arguments for `Problem.draw`.
HARD = {
    "rms_norm": (("numbers so small that eps counts", {"scale": 1e-3}), ("a token of zeros", {"zeros": True})),
    "swiglu": (("large numbers", {"scale": 50.0}),),
    "linear_cross_entropy": (("large logits", {"scale": 1000.0}),),
}
STEPS = 12
# The decay is strong enough that bf16 does not round it away.
OPTIONS = {**ADAMW, "weight_decay": 10.0}


def function_of(subject: Subject) -> Callable[..., Any]:
    """Import a subject: a function or autograd function of the operation's arguments; for AdamW an optimizer."""
    found = load(subject.use)
    is_function = isinstance(found, type) and issubclass(found, torch.autograd.Function)
    return found.apply if is_function else found


def check_operation(context: RankContext, subject: Subject, dtype: torch.dtype) -> Verdict:
    """Check a subject in a dtype; raises Wrong if a result is off, Skipped if it refuses a problem."""
    operation, function = operation_of(subject.name), function_of(subject)
    assert operation is not None  # by its name
    for words, problem in _problems(operation, dtype, context.device):
        try:
            check = _check_steps if operation == "adamw" else _check_calls
            check(function, problem, words)
        except Exception as error:
            if isinstance(error, REFUSALS):
                raise Skipped(f"refuses {words}: {str(error).partition(chr(10))[0]}") from error
            if context.device.type == "cpu" and is_of_triton(error):
                raise Skipped("needs a CUDA GPU: it is a Triton kernel") from error
            raise
    return Verdict("ok")


def _problems(operation: str, dtype: torch.dtype, device: torch.device) -> Iterator[tuple[str, Problem]]:
    """Yield small problems with a description of each; the hard ones come last."""
    for seed, ((widths, size), (batch, length)) in enumerate(itertools.product(SIZES.items(), SEQUENCES)):
        problem = Problem(operation, Widths(size, batch, length, VOCAB_SIZE), dtype, device)
        problem.draw(seed)
        yield f"{widths}, {batch} × {length} tokens", problem
    for words, numbers in HARD.get(operation, ()):
        problem.draw(seed, **numbers)
        yield words, problem


def _check_calls(function: Callable[..., Any], problem: Problem, words: str) -> None:
    """Call forward and backward twice, with other numbers in the same tensors; check the second call."""
    problem.change_signs()
    problem.restore()
    call(function, problem)
    problem.change_signs()
    problem.restore()
    outputs, gradients = call(function, problem)
    problem.restore()  # the call may have overwritten its inputs
    usual = errors_of(*call(DIFFERENTIABLE[problem.operation], problem), problem)
    for what, error in errors_of(outputs, gradients, problem).items():
        if said := far_off(what, error, usual[what], problem):
            raise Wrong(f"{said} ({words})")


def call(function: Callable[..., Any], problem: Problem) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Return outputs and gradients of a call; raises Wrong if one is missing or has the wrong shape."""
    outputs = as_tuple(function(*problem.inputs, *problem.constants))
    wanted = problem.exact.outputs
    shapes = [tuple(each.shape) if isinstance(each, Tensor) else type(each).__name__ for each in outputs]
    if shapes != [tuple(each.shape) for each in wanted]:
        raise Wrong(f"returns {shapes}, must return tensors of {[tuple(each.shape) for each in wanted]}")
    if not all(each.requires_grad for each in outputs):
        raise Wrong("its output has no gradient: it is detached from its inputs, or made without autograd")
    kept = tuple(each.detach().clone() for each in outputs)
    weights = [gradient.to(output.dtype) for gradient, output in zip(problem.gradients, outputs, strict=True)]
    found = torch.autograd.grad(outputs, problem.inputs, weights, allow_unused=True)
    if any(each is None for each in found):
        raise Wrong("backward gives no gradient of one of its inputs")
    return kept, found


def errors_of(outputs: tuple[Tensor, ...], gradients: tuple[Tensor, ...], problem: Problem) -> dict[str, Errors]:
    """Return the errors of outputs and of gradients by name."""
    return {"output": problem.output_errors(outputs), "gradient": problem.gradient_errors(gradients)}


def far_off(what: str, error: Errors, usual: Errors | None, problem: Problem) -> str | None:
    """Say which error is NaN or far above `usual`, that of the plain way (None: it has none); None if neither is."""
    has_products = problem.operation == "linear_cross_entropy" and problem.device.type == "cuda"
    fine_eps = TF32_EPS if has_products else STEP_EPS if problem.operation == "adamw" else FINE_EPS
    eps = {torch.float32: fine_eps}.get(problem.dtype, torch.finfo(problem.dtype).eps)
    return error_limits.far_off(what, error, usual or (0.0, 0.0), eps, "the plain way")


def _check_steps(make: Callable[..., Any], problem: Problem, words: str) -> None:
    """Compare steps with AdamW's in fp64, and in the dtype to see what rounding does; the last parameter is frozen."""
    start = [tensor.detach().clone() for tensor in problem.inputs]
    exact = _after_steps(torch.optim.AdamW, [tensor.double() for tensor in start], problem)
    usual, found = (_after_steps(each, copy.deepcopy(start), problem) for each in (torch.optim.AdamW, make))
    if not torch.equal(found[-1], start[-1]):
        raise Wrong("changes a parameter that has no gradient")
    moved = [(wanted - before.double()) for wanted, before in zip(exact, start, strict=True)][:-1]
    off = _relative(found[:-1], exact, moved), _relative(usual[:-1], exact, moved)
    allowed = LIMITS[0].allowed(off[1], FINE_EPS)
    if not off[0] <= allowed:
        raise Wrong(
            f"after {STEPS} steps weights are off by {off[0]:.2g} of how far they move, torch's AdamW by {off[1]:.2g}, "
            f"allowed is {allowed:.2g} ({words})"
        )


def _after_steps(make: Callable[..., Any], weights: list[Tensor], problem: Problem) -> list[Tensor]:
    generator = torch.Generator(problem.device).manual_seed(0)
    for weight in weights:
        weight.requires_grad_()
    optimizer = make(weights, **OPTIONS)
    for step in range(STEPS):
        if step == STEPS // 2:
            for group in optimizer.param_groups:
                group["lr"] /= 2
        for weight in weights[:-1]:
            drawn = torch.randn(weight.shape, generator=generator, device=problem.device)
            weight.grad = drawn.to(problem.dtype).to(weight.dtype)
        optimizer.step()
    return [weight.detach() for weight in weights]


def _relative(found: list[Tensor], exact: list[Tensor], moved: list[Tensor]) -> float:
    shares = [
        ((each.double() - wanted).norm() / move.norm()).nan_to_num(nan=float("inf")).item()
        for each, wanted, move in zip(found, exact, moved, strict=False)
    ]
    return max(shares)
