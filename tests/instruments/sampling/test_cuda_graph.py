from contextlib import contextmanager
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import torch
from torch import nn

from pipeline.errors import Skipped
from pipeline.instruments.sampling import cuda_graph
from pipeline.instruments.sampling.cuda_graph import WARMUP_CALLS, captured, make_capturable

CUDA = torch.device("cuda")


def test_a_cpu_cannot_replay_graphs():
    with pytest.raises(Skipped, match="need a GPU"), captured(lambda: pytest.fail("called"), torch.device("cpu")):
        pass


def test_adam_counts_its_steps_on_the_device_of_its_parameters():
    parameter = nn.Parameter(torch.ones(2, device="meta"))
    optimizer = torch.optim.AdamW([parameter])
    optimizer.state[parameter] = {"step": torch.tensor(3.0)}
    make_capturable(optimizer)
    assert optimizer.param_groups[0]["capturable"]
    assert optimizer.state[parameter]["step"].device.type == "meta"


@pytest.fixture
def log(monkeypatch):
    """Replace CUDA's streams and graphs and log what is done; as in torch, ending a failed capture raises."""
    done = []

    @contextmanager
    def graph(_graph):
        done.append("capture")
        try:
            yield
        finally:
            if done[-1] == "fails":
                raise RuntimeError("operation failed due to a previous error during capture")

    recorded = SimpleNamespace(replay=lambda: done.append("replay"), reset=lambda: done.append("reset"))
    for name in ("Stream", "current_stream", "stream", "synchronize"):
        monkeypatch.setattr(torch.cuda, name, MagicMock())
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: recorded)
    monkeypatch.setattr(torch.cuda, "graph", graph)
    monkeypatch.setattr(cuda_graph, "free_memory", lambda: done.append("free"))
    return done


def test_a_call_is_warmed_up_captured_once_and_freed(log):
    with captured(lambda: log.append("call"), CUDA, clear=lambda: log.append("clear")) as replay:
        log.append("inside")
        replay()
    calls = ["clear", "call"] * WARMUP_CALLS
    assert log == [*calls, "clear", "capture", "call", "inside", "replay", "reset", "clear", "free"]


def test_a_replay_copies_in_all_inputs_or_none(log):
    own = [torch.zeros(2), torch.zeros(2)]
    with captured(lambda: None, CUDA, inputs=own) as replay:
        replay()
        assert own[0].tolist() == [0, 0]
        replay(torch.ones(2), torch.ones(2))
        assert own[0].tolist() == own[1].tolist() == [1, 1]
        with pytest.raises(ValueError, match="zip"):
            replay(torch.ones(2))


@pytest.mark.parametrize(
    ("error", "in_warm_up", "kind", "said"),
    [
        (RuntimeError("denied\nSearch for it"), False, Skipped, "cannot be captured as a CUDA graph: denied"),
        (torch.OutOfMemoryError("full"), False, torch.OutOfMemoryError, "full"),
        (RuntimeError("shapes do not fit"), True, RuntimeError, "shapes do not fit"),
    ],
)
def test_a_failed_capture_is_skipped_with_its_first_error_but_oom_and_bugs_raise(log, error, in_warm_up, kind, said):
    def call():
        if "capture" in log or in_warm_up:
            log.append("fails")
            raise error

    with pytest.raises(kind) as raised, captured(call, CUDA):
        pass
    assert str(raised.value) == said
    assert log[-1] == "free"


def training(seed=0):
    """Return a small model, its fixed data, and a training step on them, which returns the loss."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    make_capturable(optimizer)
    x = torch.randn(32, 64, device="cuda")

    def step():
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return model, x, step


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:This instance was constructed with capturable")
def test_replayed_steps_train_like_eager_ones():
    eager_model, _, eager_step = training()
    for _ in range(WARMUP_CALLS):
        eager_step()
    expected = [eager_step().item() for _ in range(5)]
    model, _, step = training()
    with captured(step, CUDA) as replay:
        found = [replay().item() for _ in range(5)]
    assert found == pytest.approx(expected, rel=1e-4)
    for own, other in zip(model.parameters(), eager_model.parameters(), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-3, atol=1e-5)


@pytest.mark.gpu
def test_each_replay_overwrites_gradients_and_uses_new_data():
    model, x, _ = training()

    def gradients():
        model(x).square().mean().backward()

    with captured(gradients, CUDA, inputs=[x], clear=model.zero_grad) as replay:
        other = torch.randn_like(x)
        for _ in range(3):
            replay(other)
        found = [parameter.grad.clone() for parameter in model.parameters()]
    model(other).square().mean().backward()
    for gradient, parameter in zip(found, model.parameters(), strict=True):
        torch.testing.assert_close(gradient, parameter.grad)


@pytest.mark.gpu
def test_the_memory_of_a_graph_is_freed():
    x = torch.ones(64 * 2**20, device="cuda")
    before = torch.cuda.memory_reserved()
    with captured(lambda: x * 2 + x * 3, CUDA) as replay:
        replay()
        assert torch.cuda.memory_reserved() > before
    assert torch.cuda.memory_reserved() <= before


@pytest.mark.gpu
def test_the_gpu_still_works_after_a_failed_capture():
    x = torch.ones(4, device="cuda")
    with pytest.raises(Skipped, match=r"^cannot be captured as a CUDA graph: .*captur"), captured(x.sum().item, CUDA):
        pass
    assert (x * 2).sum().item() == 8
    with captured(lambda: x * 3, CUDA) as replay:
        assert replay().sum().item() == 12
