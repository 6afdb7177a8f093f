"""Capture a call as one CUDA graph: its kernels are launched together, so the host no longer sets the pace.

This shows what the GPU takes for a step that is host-bound when its kernels are launched one by one.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from pipeline.errors import Skipped
from pipeline.instruments.memory.out_of_memory import free_memory, is_out_of_memory

# As PyTorch advises: lazy initialisation, optimizer state and autotuning must be done before the capture.
WARMUP_CALLS = 3


class CapturedCall:
    """A graph to replay; `output` is what the call returned, whose tensors each replay overwrites."""

    def __init__(self, graph: torch.cuda.CUDAGraph, inputs: Sequence[Tensor], output: Any) -> None:
        self._graph, self._inputs, self.output = graph, inputs, output

    def __call__(self, *values: Tensor) -> Any:
        """Copy values into the inputs (all or none of them), replay the graph and return the output."""
        for own, value in zip(self._inputs if values else (), values, strict=True):
            own.copy_(value, non_blocking=True)
        self._graph.replay()
        return self.output


@contextmanager
def captured(
    call: Callable[[], Any],
    device: torch.device,
    inputs: Sequence[Tensor] = (),
    clear: Callable[[], object] = lambda: None,
) -> Iterator[CapturedCall]:
    """Capture a call on a GPU, after warm-up on another stream; free its memory on exit.

    inputs: the tensors that the call reads its data from. clear: drops what a call leaves behind, such as gradients; it
    runs before each warm-up call, before the capture and at the end. A gradient that is None when captured is
    overwritten by each replay, not added to. An optimizer in the call must be capturable, see `make_capturable`. Raises
    Skipped with a one-line reason if the call cannot be captured.
    """
    require_graphs(device)
    try:
        _warm_up(call, device, clear)
        clear()
        graph = torch.cuda.CUDAGraph()
        result = CapturedCall(graph, inputs, _capture(graph, call))
        try:
            yield result
        finally:
            torch.cuda.synchronize(device)
            graph.reset()
            result.output = None
    finally:
        clear()
        free_memory()


def require_graphs(device: torch.device) -> None:
    """Raise Skipped on a CPU, which has no graphs."""
    if device.type != "cuda":
        raise Skipped("CUDA graphs need a GPU")


def make_capturable(optimizer: torch.optim.Optimizer) -> None:
    """Make an optimizer that counts its steps on the host, as Adam does, count them on the GPU."""
    for group in optimizer.param_groups:
        if "capturable" in group:
            group["capturable"] = True
        for parameter in group["params"]:
            state = optimizer.state.get(parameter, {})
            if isinstance(state.get("step"), Tensor):
                state["step"] = state["step"].to(parameter.device)


def _warm_up(call: Callable[[], object], device: torch.device, clear: Callable[[], object]) -> None:
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This instance was constructed with capturable=True")
        for _ in range(WARMUP_CALLS):
            clear()
            call()
    torch.cuda.current_stream(device).wait_stream(stream)


def _capture(graph: torch.cuda.CUDAGraph, call: Callable[[], Any]) -> Any:
    try:
        with torch.cuda.graph(graph):
            return call()
    except RuntimeError as error:
        cause = _first_error(error)
        if is_out_of_memory(cause):
            raise cause from None
        reason = (str(cause) or type(cause).__name__).splitlines()[0]
    raise Skipped(f"cannot be captured as a CUDA graph: {reason}")


def _first_error(error: BaseException) -> BaseException:
    """Return the original error: ending a failed capture raises another one."""
    while error.__context__ is not None:
        error = error.__context__
    return error
