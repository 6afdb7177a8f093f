"""What a cell takes, told before it is measured. Imports no torch: the workflow reads it."""

from pipeline.stages.health.cell import Cell, Settings

# The counters before, and the start of CUDA on a GPU; tensors and warm-up of each of its four works, of each link.
STARTING_S, GPU_S, WORK_S, LINK_S = 3.0, 0.5, 0.5, 0.1


def expected_s(cell: Cell, settings: Settings, on_gpu: bool) -> float:
    """Return about how many seconds a cell takes: each GPU alone at two works, each pair twice, all at once."""
    if not on_gpu:
        return 0.5
    gpus = cell.gpus
    alone_s = gpus * (GPU_S + 4 * WORK_S + 2 * settings.alone_s)
    return STARTING_S + alone_s + gpus * (gpus - 1) * (LINK_S + settings.link_s) + settings.together_s
