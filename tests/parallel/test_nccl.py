import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from pipeline.errors import Skipped
from pipeline.parallel import nccl
from pipeline.parallel.processes.starting import run_ranks

STREAM = 0x7FFF12345678


@pytest.fixture(scope="module")
def library_path(tmp_path_factory):
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    path = tmp_path_factory.mktemp("nccl") / "libnccl.so.2"
    source = Path(__file__).with_name("fake_nccl.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", path, source], check=True)
    return path


@pytest.fixture
def library(library_path):
    return nccl.declare(ctypes.CDLL(str(library_path)))


@pytest.fixture
def communicator(library):
    unique_id = nccl.UniqueId()
    library.ncclGetUniqueId(ctypes.byref(unique_id))
    return nccl.Communicator(library, unique_id, rank=1, world_size=3)


def agreed_id(context, path):
    library = nccl.declare(ctypes.CDLL(path))
    return bytes(nccl.agree_on_id(library, context.rank, context.device).internal)


def sum_directly(context, length):
    library = nccl.loaded_library()
    unique_id = nccl.agree_on_id(library, context.rank, context.device)
    communicator = nccl.Communicator(library, unique_id, context.rank, context.world_size)
    source = torch.full((length,), float(context.rank + 1), device=context.device)
    target = torch.zeros_like(source)
    communicator.all_reduce(source, target, torch.cuda.current_stream().cuda_stream)
    dist.all_reduce(source)
    torch.cuda.synchronize()
    communicator.close()
    return torch.equal(source, target), target[0].item()


def test_all_reduce_works_in_and_out_of_place_and_raises_nccls_errors(library, communicator):
    source, target = torch.arange(5.0), torch.zeros(5)
    communicator.all_reduce(source, target, STREAM)
    assert source.tolist() == [0, 1, 2, 3, 4]
    assert target.tolist() == [0, 3, 6, 9, 12]
    communicator.all_reduce(source, source, STREAM)
    assert source.tolist() == target.tolist()
    with pytest.raises(RuntimeError, match="NCCL: invalid argument: of the communicator"):
        communicator.all_reduce(torch.zeros(1), torch.zeros(1), stream=0)
    communicator.close()
    with pytest.raises(RuntimeError, match="NCCL: invalid argument"):  # for an incomplete id
        nccl.Communicator(library, nccl.UniqueId(), rank=0, world_size=2)


@pytest.mark.parametrize("target", [torch.zeros(2), torch.zeros(3, dtype=torch.float64), torch.zeros(6)[::2]])
def test_tensors_that_nccl_would_misread_are_refused(communicator, target):
    with pytest.raises(ValueError, match="contiguous fp32 tensors of one length"):
        communicator.all_reduce(torch.zeros(3), target, STREAM)


def test_every_rank_gets_the_complete_id_of_rank_0(library_path):
    ids = run_ranks(agreed_id, 2, backend="gloo", args=(str(library_path),))
    assert ids == [bytes(i * 7 % 256 for i in range(nccl.UNIQUE_ID_BYTES))] * 2


def test_a_library_that_torch_has_not_loaded_raises_skipped(monkeypatch):
    monkeypatch.setattr(torch.version, "hip", "6.0")  # no process has both
    with pytest.raises(Skipped, match=r"librccl\.so\.1"):
        nccl.loaded_library()


@pytest.mark.gpu(count=2)
def test_a_direct_nccl_sum_agrees_with_torch():
    assert run_ranks(sum_directly, 2, backend="nccl", device_type="cuda", args=(1_000_003,)) == [(True, 3.0)] * 2
