"""What a cell takes, told before it is measured. Imports no torch: the workflow reads it."""

from pipeline.formulas.parameters import parameter_count
from pipeline.formulas.sizes import SIZES
from pipeline.formulas.training_state import training_state
from pipeline.stages.levers.cell import Cell, Settings

COMPILING_S = 15.0
# What a GPU does for a parameter and token a second, about.
EAGER_RATE = 4e13
GPU_ONLY = {"flash", "graph"}


def expected_s(cell: Cell, settings: Settings, on_gpu: bool) -> float:
    """Return about how many seconds a cell takes: checked steps, twice where there is a lever, and timed ones."""
    if not on_gpu and GPU_ONLY & {*cell.names}:  # skipped
        return 0.5
    checked = settings.checked_steps * (2 if cell.names else 1)
    work = parameter_count(SIZES[cell.size], settings.vocab_size) * settings.batch_size * cell.context_length
    checked_s = checked * work / EAGER_RATE if on_gpu else settings.budget_s
    return 3 + settings.budget_s + checked_s + (COMPILING_S if "compile" in cell.names else 0)


def needed_bytes(cell: Cell, settings: Settings) -> int:
    """Return the least memory that a cell takes on a CPU: the training state of the eager model."""
    if GPU_ONLY & {*cell.names}:  # skipped
        return 0
    return training_state(parameter_count(SIZES[cell.size], settings.vocab_size)).total_bytes
