from pipeline.formulas.activations import Workload
from pipeline.formulas.data_parallel import training_bytes, training_s
from pipeline.formulas.peak_memory import peak_bytes
from pipeline.formulas.sizes import SIZES


def test_every_rank_takes_what_a_training_step_of_its_own_does():
    settings = {"vocab_size": 300, "batch_size_per_rank": 3, "context_length": 64}
    alone = peak_bytes(Workload(SIZES["tiny"], 300, 3, 64, "bf16", device_type="cpu"), "train_step")
    assert [training_bytes("tiny", "bf16", ranks, **settings) for ranks in (1, 4)] == [alone, 4 * alone]


def test_more_steps_take_longer_and_no_steps_the_start():
    assert training_s(0, 0, on_gpu=True) == training_s(0, 0, on_gpu=False) > 0
    assert training_s(2, 100, on_gpu=False) > training_s(2, 10, on_gpu=False) > training_s(0, 10, on_gpu=False)
