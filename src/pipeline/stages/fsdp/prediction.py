"""Predict the memory and traffic of each way to train, where there is a formula."""

from functools import cache

from pipeline.formulas import fsdp_training, peak_memory
from pipeline.formulas.activations import Workload
from pipeline.formulas.fsdp import FsdpPlan
from pipeline.formulas.parameters import parameter_bytes, parameter_count
from pipeline.formulas.sizes import SIZES
from pipeline.formulas.training_state import training_state
from pipeline.formulas.units import BF16_BYTES, FP32_BYTES
from pipeline.stages.fsdp.cell import COLLECTIVES, Cell

PLANS = {"fsdp": fsdp_training.sharded_by_block, "fsdp_layers": fsdp_training.sharded_by_layer}

# Ways with a formula that are not fully sharded.
PREDICTED = ("none", "ddp", "ddp_sharded")


def plan(impl: str, cell: Cell, vocab_size: int) -> FsdpPlan | None:
    """Return what our FSDP holds and sends; None for any other way."""
    if impl not in PLANS:
        return None
    itemsize = BF16_BYTES if cell.precision == "bf16" else FP32_BYTES
    return PLANS[impl](SIZES[cell.size], vocab_size, cell.world_size, itemsize)


@cache  # each kind of memory has its own row
def memory_bytes(impl: str, cell: Cell, vocab_size: int) -> dict[str, int]:
    """Return bytes by kind, and the peak of a warm step on CUDA; kinds without a formula are left out."""
    workload = Workload(
        SIZES[cell.size], vocab_size, cell.batch_size_per_rank, cell.context_length, precision=cell.precision
    )
    sharded = plan(impl, cell, vocab_size)
    if sharded is not None:
        return {
            "parameters": sharded.persistent_bytes,
            "gradients": sharded.gradient_bytes,
            "optimizer_state": sharded.moments_bytes,
            "peak": fsdp_training.peak_bytes(workload, sharded),
        }
    if impl not in PREDICTED:
        return {}
    state = training_state(parameter_count(workload.size, workload.vocab_size))
    whole = {"parameters": state.weights_bytes, "gradients": state.gradients_bytes}
    if impl == "ddp_sharded":
        return whole
    peak_bytes = peak_memory.peak_bytes(workload, "train_step")
    return {**whole, "optimizer_state": state.optimizer_bytes, "peak": peak_bytes}


def collective_bytes(impl: str, cell: Cell, vocab_size: int) -> dict[str, int]:
    """Return the payload of a step by collective; {} for torch's and the user's, which have other units."""
    sharded = plan(impl, cell, vocab_size)
    if sharded is not None:
        return dict.fromkeys(COLLECTIVES, 0) | sharded.collective_bytes
    if impl not in PREDICTED:
        return {}
    weights = parameter_bytes(SIZES[cell.size], vocab_size)
    allreduce = 0 if impl == "none" else weights
    return dict.fromkeys(COLLECTIVES, 0) | {
        "allreduce": allreduce,
        "broadcast": weights if impl == "ddp_sharded" else 0,
    }
