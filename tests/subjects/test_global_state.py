import time
from functools import partial

import pytest
import torch

from pipeline.subjects import global_state

CHANGES = {
    "num_threads": lambda: torch.set_num_threads(torch.get_num_threads() + 1),
    "detect_anomaly": lambda: torch.autograd.set_detect_anomaly(True),
    "deterministic_debug_mode": lambda: torch.use_deterministic_algorithms(True, warn_only=True),
    "default_dtype": lambda: torch.set_default_dtype(torch.float64),
    "default_device": lambda: torch.set_default_device("meta"),
    "grad_enabled": lambda: torch.set_grad_enabled(False),
    "autocast on cpu": lambda: torch.set_autocast_enabled("cpu", True),  # entering it would leave it nested
    "cudnn.benchmark": partial(setattr, torch.backends.cudnn, "benchmark", True),
    "cudnn.allow_tf32": partial(setattr, torch.backends.cudnn, "allow_tf32", False),
    "flash_sdp": lambda: torch.backends.cuda.enable_flash_sdp(False),
    "float32_matmul_precision": lambda: torch.set_float32_matmul_precision("high"),
    "fp32_precision": partial(setattr, torch.backends.cuda.matmul, "fp32_precision", "tf32"),
    "time.perf_counter": partial(setattr, time, "perf_counter", lambda: 0.0),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_setting_is_restored_and_reported_once(name):
    state = global_state.read()
    CHANGES[name]()
    global_state.restore(state)
    assert list(global_state.read()) == list(state)
    assert any(told.startswith(f"{name} from ") for told in global_state.take_changes())
    assert global_state.take_changes() == []
