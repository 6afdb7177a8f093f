"""Estimate a cell's time before it is measured. Imports no torch: the workflow reads it."""

from pipeline.stages.health.cell import Cell, Settings

# Reading the counters first; per GPU, starting CUDA; per work (four a GPU) and per link, tensors and warm-up.
STARTING_S, GPU_S, WORK_S, LINK_S = 3.0, 0.5, 0.5, 0.1


def expected_s(cell: Cell, settings: Settings, on_gpu: bool) -> float:
    """Estimate the seconds that a cell takes: each GPU alone at two works, each pair both ways, all at once."""
    if not on_gpu:
        return 0.5
    gpus = cell.gpus
    alone_s = gpus * (GPU_S + 4 * WORK_S + 2 * settings.alone_s)
    return STARTING_S + alone_s + gpus * (gpus - 1) * (LINK_S + settings.link_s) + settings.together_s
