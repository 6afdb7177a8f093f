import subprocess
import sys
from dataclasses import asdict

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from pipeline.formulas.flops import (
    backward_flops,
    forward_flops,
    optimizer_bytes,
    parameter_bytes,
    parameter_count,
    train_step_flops,
    training_state_bytes,
)
from pipeline.formulas.sizes import SIZES, ModelSize
from pipeline.model import TransformerLM

VOCAB_SIZE = 100
BATCH_SIZE = 3
SEQ_LEN = 24
ODD_SIZE = ModelSize(d_model=24, d_ff=56, num_layers=3, num_heads=2)


def tensor_bytes(tensors):
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def build_model(size, vocab_size=VOCAB_SIZE):
    return TransformerLM(vocab_size=vocab_size, context_length=SEQ_LEN, **asdict(size))


@pytest.fixture
def stepped():
    """A model and its optimizer after one step, with the gradients still there."""
    model = build_model(ODD_SIZE)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.zeros(1, SEQ_LEN, dtype=torch.int64)).sum().backward()
    optimizer.step()
    return model, optimizer


@pytest.mark.parametrize("size", [*SIZES.values(), ODD_SIZE])
def test_parameter_count_equals_the_models(size):
    with torch.device("meta"):
        model = build_model(size, vocab_size=10_000)
    assert parameter_count(size, 10_000) == sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("size", [SIZES["tiny"], ODD_SIZE])
def test_flops_equal_those_that_torch_counts(size):
    workload = (size, VOCAB_SIZE, BATCH_SIZE, SEQ_LEN)
    model = build_model(size)
    with FlopCounterMode(display=False) as forward_counter:
        logits = model(torch.zeros(BATCH_SIZE, SEQ_LEN, dtype=torch.int64))
    with FlopCounterMode(display=False) as backward_counter:
        logits.sum().backward()
    assert forward_flops(*workload) == forward_counter.get_total_flops()
    assert backward_flops(*workload) == backward_counter.get_total_flops()
    assert train_step_flops(*workload) == forward_flops(*workload) + backward_flops(*workload)


def test_parameter_bytes_equal_the_tensors(stepped):
    model, _ = stepped
    assert parameter_bytes(ODD_SIZE, VOCAB_SIZE) == tensor_bytes(model.parameters())


def test_training_state_bytes_equal_parameters_gradients_and_moments(stepped):
    model, optimizer = stepped
    parameters = list(model.parameters())
    gradients = [parameter.grad for parameter in parameters]
    moments = [optimizer.state[p][name] for p in parameters for name in ("exp_avg", "exp_avg_sq")]
    assert training_state_bytes(ODD_SIZE, VOCAB_SIZE) == tensor_bytes([*parameters, *gradients, *moments])


def test_optimizer_reads_the_training_state_and_writes_it_without_the_gradients(stepped):
    model, optimizer = stepped
    parameters = list(model.parameters())
    moments = [optimizer.state[p][name] for p in parameters for name in ("exp_avg", "exp_avg_sq")]
    read = [*parameters, *(parameter.grad for parameter in parameters), *moments]
    written = [*parameters, *moments]
    assert optimizer_bytes(ODD_SIZE, VOCAB_SIZE) == tensor_bytes([*read, *written])


def test_what_the_workflow_reads_imports_no_torch():
    code = (
        "import sys; import pipeline.formulas.sizes, pipeline.formulas.flops, pipeline.model.precision; "
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
