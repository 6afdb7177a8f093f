import torch

from pipeline.parallel.processes.starting import run_ranks
from pipeline.stages.ddp.cell import VARIANTS, Cell, Settings
from pipeline.stages.ddp.variants import build_step

CELL = Cell(size="tiny", batch_size_per_rank=1, context_length=8)
SETTINGS = Settings(vocab_size=100)


def options_of_torchs(context):
    """Return, of each variant that is torch's: whether it sends buffers, and whether gradients lie in its buckets."""
    steps = {
        variant: build_step(
            variant,
            CELL,
            SETTINGS,
            context.rank,
            torch.device("cpu"),
        )
        for variant in VARIANTS
        if variant.impl.startswith("torch")
    }
    return {
        (variant.impl, variant.bucket_size_mb): (step.model.broadcast_buffers, step.model.gradient_as_bucket_view)
        for variant, step in steps.items()
    }


def test_torchs_is_there_as_it_comes_and_as_ours_are():
    options, _ = run_ranks(options_of_torchs, 2, backend="gloo")
    assert options[("torch", 25)] == (True, False)
    assert options[("torch_tuned", 25)] == (False, True)
