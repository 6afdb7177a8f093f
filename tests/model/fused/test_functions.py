import pytest
import torch

from pipeline.formulas.operations import Widths
from pipeline.formulas.sizes import OwnSize
from pipeline.model.fused.operations import in_torch, in_triton
from pipeline.model.operation_problems import Problem
from pipeline.stages.ops.implementations import ours
from pipeline.subjects.operation_check import call, errors_of, far_off

WIDTHS = Widths(OwnSize(48, 80, 1, 4, 2), batch_size=2, seq_len=9, vocab_size=70)
OPERATIONS = ("rms_norm", "rotary", "swiglu", "linear_cross_entropy")


@pytest.mark.parametrize("operations", [in_torch, in_triton])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_each_operation_matches_the_exact_results_and_gradients(operation, operations):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    problem = Problem(operation, WIDTHS, torch.float32, device)
    problem.draw(0)
    for what, errors in errors_of(*call(ours(operation, operations()), problem), problem).items():
        assert far_off(what, errors, None, problem) is None
