from pipeline.formulas.sizes import SIZES
from pipeline.model.step import build_training_step
from pipeline.parallel.processes.starting import run_ranks
from pipeline.stages.ddp.measure import WAYS


def options_of_torchs(context):
    """Return, of each variant that is torch's: whether it sends buffers, and whether gradients lie in its buckets."""
    plain = {"vocab_size": 100, "context_length": 8, "batch_size": 1, "precision": "fp32", "device": "cpu"}
    steps = {
        tuple(way.key.values()): way.build(build_training_step(SIZES["tiny"], **plain))
        for way in WAYS
        if way.name.startswith("torch")
    }
    return {key: (step.model.broadcast_buffers, step.model.gradient_as_bucket_view) for key, step in steps.items()}


def test_torchs_is_there_as_it_comes_and_as_ours_are():
    options, _ = run_ranks(options_of_torchs, 2, backend="gloo")
    assert options[("torch", 25)] == (True, False)
    assert options[("torch_tuned", 25)] == (False, True)
