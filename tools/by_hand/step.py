"""Build, warm up and time a whole training step with one change."""

import contextlib
import gc
import statistics
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from tools.by_hand.model import SIZES, VOCABULARY, Transformer, attention_of

Record = dict[str, Any]
Step = Callable[[], Tensor]
NEED_CUDA = ("flash", "graph", "tf32")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LEARNING_RATE, WARM_UP_STEPS, TIMED_STEPS = 1e-4, 5, 10


def built(words: Sequence[str], size: str, context: int, batch: int) -> tuple[Step, torch.optim.Optimizer]:
    """Make model, optimizer and batch; return a function that runs a step and returns its loss, and the optimizer."""
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high" if "tf32" in words else "highest")
    if "blocks" in words:
        return built_by_pipeline(words, size, context, batch)
    dtype = torch.bfloat16 if "bf16_weights" in words else torch.float32
    with torch.device(DEVICE):
        model = Transformer(words, context, **SIZES[size])
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    if "compile" in words:
        for block in model.blocks:
            block.compile()
    is_fused = True if "fused" in words else None
    optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE, fused=is_fused, capturable="graph" in words)
    sequences = torch.randint(VOCABULARY, (batch, context + 1), generator=torch.Generator().manual_seed(0)).to(DEVICE)
    tokens, targets = sequences[:, :-1].contiguous(), sequences[:, 1:].flatten()
    has_autocast = not {"fp32", "tf32"} & {*words}

    def step() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        # A graph must not read weights that were cast outside it.
        with torch.autocast(DEVICE, torch.bfloat16, enabled=has_autocast, cache_enabled="graph" not in words):
            loss = functional.cross_entropy(model(tokens).flatten(0, 1).float(), targets)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step, optimizer


def built_by_pipeline(words: Sequence[str], size: str, context: int, batch: int) -> tuple[Step, torch.optim.Optimizer]:
    """Return the pipeline's own step with its fused blocks, at the same sizes."""
    from pipeline.formulas.sizes import ModelSize
    from pipeline.model.fused.step import fused_step
    from pipeline.model.step import build_training_step

    plain = build_training_step(
        ModelSize(**SIZES[size]),
        vocab_size=VOCABULARY,
        context_length=context,
        batch_size=batch,
        precision="bf16",
        device=DEVICE,
        fused_optimizer="fused" in words,
    )
    made = fused_step(plain, attention_of(words), torch.bfloat16)
    for group in made.optimizer.param_groups:
        group["lr"] = LEARNING_RATE
    return made.run, made.optimizer


def captured(step: Step, optimizer: torch.optim.Optimizer) -> Step:
    """Capture a warmed-up step as one CUDA graph; return a function that replays it."""
    optimizer.zero_grad(set_to_none=True)
    gc.collect()
    torch.cuda.empty_cache()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()

    def replay() -> Tensor:
        graph.replay()
        return loss

    return replay


def measured(change: str, size: str, context: int, batch: int) -> Record:
    """Warm up a step and time it; peak memory is that of the timed steps, or of a graph's capture and replays."""
    words, has_gpu = change.split("+"), DEVICE == "cuda"
    step, optimizer = built(words, size, context, batch)
    if has_gpu:
        torch.cuda.synchronize()  # so that model and batch are ready for any stream
    # PyTorch's rule: before a capture, warm up on another stream.
    with torch.cuda.stream(torch.cuda.Stream()) if "graph" in words else contextlib.nullcontext():
        losses = [float(step()) for _ in range(WARM_UP_STEPS)]
    if has_gpu:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    if "graph" in words:
        step = captured(step, optimizer)
        losses += [float(step()) for _ in range(WARM_UP_STEPS)]
    samples_ms = [time_ms(step) for _ in range(TIMED_STEPS)]
    found = {"status": "ok", "samples_ms": samples_ms, "median_ms": statistics.median(samples_ms)}
    if has_gpu:
        found["peak_bytes"] = torch.cuda.max_memory_allocated()
    return {**found, "first_loss": losses[0], "loss_after_timing": float(step())}


def time_ms(step: Step) -> float:
    """Time a step by the host's clock, with the GPU idle before and after it."""
    synchronize = torch.cuda.synchronize if DEVICE == "cuda" else lambda: None
    synchronize()
    start_s = time.perf_counter()
    step()
    synchronize()
    return 1e3 * (time.perf_counter() - start_s)


def outcome(change: str, size: str, context: int, batch: int) -> Record:
    """Measure a change in this process; if it cannot run, return why as status and reason."""
    lacking = [word for word in change.split("+") if word in NEED_CUDA and DEVICE != "cuda"]
    if lacking:
        return {"status": "skipped", "reason": f"{' and '.join(lacking)}: needs a CUDA GPU"}
    try:
        return measured(change, size, context, batch)
    except Exception as error:
        traceback.print_exc()
        cause: BaseException | None = error
        while cause is not None:  # a capture that fails raises its own error on top
            if isinstance(cause, torch.OutOfMemoryError):
                return {"status": "oom", "reason": "out of memory"}
            cause = cause.__context__
        return {"status": "failed", "reason": " ".join(f"{type(error).__name__}: {error}".split())[:200]}
