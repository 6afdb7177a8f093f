"""Small models and their training steps, for tests that compare formulas with counts."""

from pipeline.formulas.sizes import ModelSize, OwnSize
from pipeline.model import TransformerLM
from pipeline.model.step import build_training_step

ODD_SIZE = ModelSize(d_model=24, d_ff=56, num_layers=3, num_heads=2)
GROUPED = OwnSize(d_model=64, d_ff=96, num_layers=2, num_heads=8, num_kv_heads=2, vocab_size=120)


def build_model(size, vocab_size, context_length=24):
    return TransformerLM(vocab_size=size.vocabulary(vocab_size), context_length=context_length, **size.widths())


def step_of(workload):
    names = ("vocab_size", "batch_size", "precision", "attention", "checkpoint_every", "checkpointing")
    same = {name: getattr(workload, name) for name in names}
    return build_training_step(workload.size, context_length=workload.seq_len, device=workload.device_type, **same)
