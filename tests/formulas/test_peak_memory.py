import itertools
from dataclasses import replace

import pytest
import torch

from pipeline.formulas.activations import Workload
from pipeline.formulas.parameters import parameter_bytes, parameter_count
from pipeline.formulas.peak_memory import MODE_PHASES, backward_moments, optimizer_moment, predict_peaks
from pipeline.formulas.sizes import SIZES, ModelSize, OwnSize
from pipeline.formulas.training_state import training_state
from pipeline.instruments.memory import recording
from pipeline.instruments.memory.recording import record_memory
from pipeline.instruments.memory.replay import phase_spans, replay, timeline

from .models import step_of

# Chosen so that the highest moment differs: the loss, SwiGLU, the scores of attention.
WORKLOADS = {
    "large vocabulary": Workload(ModelSize(32, 64, 2, 2), 3000, 2, 24),
    "wide feed-forward": Workload(ModelSize(32, 256, 2, 2), 60, 4, 32),
    "long context": Workload(ModelSize(32, 64, 2, 2), 60, 2, 192),
}
# If tied, the gradients of head and embedding exist side by side before they are added.
OWN = {
    "wide heads": Workload(OwnSize(32, 64, 2, 2, num_kv_heads=2, head_dim=64), 60, 2, 96),
    "tied": Workload(OwnSize(32, 64, 2, 2, num_kv_heads=2, tie_embeddings=True), 3000, 1, 8),
}
DEEP = {
    "deep and wide": Workload(ModelSize(32, 256, 6, 2), 60, 4, 32),
    "deep and long": Workload(ModelSize(32, 64, 6, 2), 60, 2, 192),
}


@pytest.fixture
def sizes_alone(monkeypatch):
    """Multiply without oneDNN, which allocates memory of its own, and record sizes without stack traces."""
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    profile = torch.profiler.profile
    monkeypatch.setattr(recording, "profile", lambda **options: profile(**options | {"with_stack": False}))


def measured_peaks(workload, mode, path):
    """Record two steps on the CPU; return the peaks by phase, of the first and of the second."""
    with record_memory(torch.device("cpu"), path) as recorder:
        recorder.phase("build")
        step = step_of(workload)
        phases = {"forward": step.forward, "backward": step.backward, "optimizer": step.optimizer_step}
        for _ in range(2):
            for name in MODE_PHASES[mode]:
                recorder.phase(name)
                with torch.set_grad_enabled(mode != "inference"):
                    phases[name]()
        recorder.phase("end")
    seen = recorder.read()
    allocations = replay(seen.events)
    active_bytes = timeline(allocations, dict.fromkeys(allocations, "all"), len(seen.events)).total_bytes
    spans = [span for span in phase_spans(seen) if span[0] in phases]
    peaks = [(name, int(active_bytes[begin : end + 1].max())) for name, begin, end in spans]
    return dict(peaks[: len(peaks) // 2]), dict(peaks[len(peaks) // 2 :])


LARGEST = Workload(SIZES["2.7B"], vocab_size=10_000, batch_size=4, seq_len=128)
# Recorded by the caching allocator of torch 2.11 in its first training step on an H200.
H200_PEAKS = {"forward": 18_007_388_168, "backward": 27_326_877_704}
# cuBLAS takes 32 MiB for each thread that multiplies: the calling thread, then autograd's.
CUBLAS_WORKSPACES = {"forward": 32 * 2**20, "backward": 64 * 2**20}


def test_predicted_gpu_peaks_equal_the_recorded_ones_except_for_workspaces():
    moments = predict_peaks(LARGEST, "train_step", first_step=True)
    for phase, peak_bytes in H200_PEAKS.items():
        scalars = peak_bytes - CUBLAS_WORKSPACES[phase] - moments[phase].total_bytes
        assert 0 <= scalars <= 16


WITHIN = {"fp32": 0.002, "bf16": 0.03}
SDPA = {"attention": "sdpa"}


@pytest.mark.usefixtures("sizes_alone")
@pytest.mark.parametrize(
    ("name", "precision", "mode", "varied"),
    [
        *itertools.product(WORKLOADS, ["fp32"], ["inference"], [{}]),
        ("long context", "bf16", "inference", {}),
        *itertools.product(WORKLOADS | OWN, ["fp32"], ["train_step"], [{}]),
        *itertools.product(WORKLOADS, ["bf16"], ["train_step"], [{}]),
        *itertools.product([*OWN, "deep and wide"], ["fp32"], ["train_step"], [{"checkpoint_every": 1}]),
        ("deep and wide", "fp32", "train_step", {"checkpoint_every": 3, "checkpointing": "recursive"}),
        ("deep and long", "fp32", "train_step", {"checkpoint_every": 1, "checkpointing": "recursive"}),
        ("deep and long", "bf16", "train_step", {"checkpoint_every": 3, "checkpointing": "recursive"}),
        ("deep and wide", "fp32", "train_step", {"checkpoint_every": 3, "checkpointing": "selective"} | SDPA),
    ],
)
def test_predicted_cpu_peaks_match_the_recorded_ones(name, precision, mode, varied, tmp_path):
    workload = replace((WORKLOADS | OWN | DEEP)[name], device_type="cpu", precision=precision, **varied)
    first, second = measured_peaks(workload, mode, tmp_path / "snapshot.pickle")
    for peaks, first_step in ((first, True), (second, False)):
        moments = predict_peaks(workload, mode, first_step=first_step)
        found = {phase: moment.total_bytes for phase, moment in moments.items()}
        assert found == pytest.approx(peaks, rel=WITHIN[precision])


def test_the_update_on_cuda_needs_the_training_state_plus_a_copy_of_the_parameters():
    sizes, moment = (LARGEST.size, LARGEST.vocab_size), optimizer_moment(LARGEST)
    expected_bytes = training_state(parameter_count(*sizes)).total_bytes + parameter_bytes(*sizes)
    assert moment.total_bytes - moment.bytes_by_category["other"] == expected_bytes


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_softmax_backward_on_cuda_has_one_more_fp32_score_matrix(precision):
    def at_the_softmax(attention):
        moments = backward_moments(replace(LARGEST, seq_len=1024, precision=precision, attention=attention))
        return next(moment.bytes_by_category["temporaries"] for moment in moments if moment.what == "attention")

    matrix = 4 * LARGEST.batch_size * LARGEST.size.num_heads * 1024**2
    vectors = 4 * 4 * LARGEST.batch_size * 1024 * LARGEST.size.d_model
    # Gradients of the softmax's output and input and their temporary, in bf16 minus the softmax's freed copy.
    matrices = 3 if precision == "fp32" else 2.5
    assert at_the_softmax("eager") - at_the_softmax("flash") == pytest.approx(matrices * matrix, abs=vectors)


def test_the_first_step_has_no_adamw_moments_before_its_update():
    first, later = (predict_peaks(LARGEST, "train_step", first_step=first) for first in (True, False))
    for phase in ("forward", "backward"):
        assert first[phase].bytes_by_category["optimizer_state"] == 0
        assert later[phase].bytes_by_category["optimizer_state"] == 2 * parameter_bytes(LARGEST.size, 10_000)
    assert first["optimizer"] == later["optimizer"]
    assert predict_peaks(LARGEST, "forward")["forward"] == first["forward"]
