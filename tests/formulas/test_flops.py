import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from pipeline.formulas.flops import backward_flops, causal_train_step_flops, forward_flops, train_step_flops
from pipeline.formulas.sizes import SIZES

from .models import GROUPED, ODD_SIZE, build_model

VOCAB_SIZE, BATCH_SIZE, SEQ_LEN = 100, 3, 24


@pytest.mark.parametrize("size", [SIZES["tiny"], ODD_SIZE, GROUPED])
def test_flops_equal_torchs_count(size):
    workload = (size, VOCAB_SIZE, BATCH_SIZE, SEQ_LEN)
    model = build_model(size, VOCAB_SIZE, SEQ_LEN)
    with FlopCounterMode(display=False) as forward_counter:
        logits = model(torch.zeros(BATCH_SIZE, SEQ_LEN, dtype=torch.int64))
    with FlopCounterMode(display=False) as backward_counter:
        logits.sum().backward()
    assert forward_flops(*workload) == forward_counter.get_total_flops()
    assert backward_flops(*workload) == backward_counter.get_total_flops()
    assert train_step_flops(*workload) == forward_flops(*workload) + backward_flops(*workload)


def test_causal_flops_count_half_of_attention_and_all_other_products():
    per_sequence = (SIZES["8B"], 151_936, 1, 32_768)
    products = 6 * 32_768 * (34 * (4 * 4096**2 + 3 * 4096 * 11_008) + 4096 * 151_936)
    assert 2 * (causal_train_step_flops(*per_sequence) - products) == train_step_flops(*per_sequence) - products
