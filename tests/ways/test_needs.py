from types import SimpleNamespace

from pipeline.formulas.activations import Workload
from pipeline.formulas.peak_memory import peak_bytes
from pipeline.formulas.sizes import SIZES
from pipeline.ways.cell import RanksCell, RanksSettings
from pipeline.ways.needs import expected_s, needed_bytes


def test_every_rank_needs_the_memory_of_its_own_training_step():
    alone = peak_bytes(Workload(SIZES["tiny"], 300, 3, 64, "bf16", device_type="cpu"), "train_step")
    cells = [RanksCell("bf16", "tiny", 3, 64, ranks) for ranks in (2, 4)]
    assert [needed_bytes(cell, RanksSettings(vocab_size=300)) for cell in cells] == [2 * alone, 4 * alone]


def test_more_ways_and_steps_take_longer_and_no_ways_take_the_start_alone():
    def seconds(ways, steps, on_gpu=False):
        cell = SimpleNamespace(row_keys=lambda: [{}] * ways)
        return expected_s(cell, RanksSettings(steps=steps), on_gpu)

    assert seconds(0, 10, on_gpu=True) == seconds(0, 10) > 0
    assert seconds(2, 100) > seconds(2, 10) > seconds(0, 10)
