"""What a cell takes, told before it is measured. Imports no torch: the workflow reads it."""

from pipeline.formulas.parameters import parameter_count
from pipeline.formulas.sizes import SIZES
from pipeline.formulas.training_state import training_state
from pipeline.stages.levers.cell import Cell, Settings, names

COMPILING_S = 15.0
# What a GPU does for a parameter and token a second, about.
EAGER_RATE = 4e13
GPU_ONLY = {"flash", "fp8", "fp8_rowwise", "graph"}


def expected_s(cell: Cell, settings: Settings, on_gpu: bool) -> float:
    """Return about how many seconds a cell takes: checked and timed steps of each of its turns."""
    work = parameter_count(SIZES[cell.size], settings.vocab_size) * settings.batch_size * cell.context_length
    checked_s = settings.checked_steps * work / EAGER_RATE if on_gpu else settings.budget_s
    measured = [set(names(levers)) for levers in cell.turns]
    measured = [levers for levers in measured if on_gpu or not GPU_ONLY & levers]  # the others are skipped
    return 1 + sum(2 + settings.budget_s + checked_s + COMPILING_S * ("compile" in levers) for levers in measured)


def needed_bytes(cell: Cell, settings: Settings) -> int:
    """Return the least memory that a cell takes on a CPU: the training state of the eager model."""
    return training_state(parameter_count(SIZES[cell.size], settings.vocab_size)).total_bytes
