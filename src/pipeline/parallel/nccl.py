"""Call NCCL's own C interface for an out-of-place all-reduce, which torch.distributed lacks.

The library is the one that torch has loaded (RCCL under ROCm, which has the same interface).
"""

import ctypes
import os
from typing import Any

import torch
import torch.distributed as dist

from pipeline.errors import Skipped

# nccl.h
UNIQUE_ID_BYTES = 128
SUCCESS, SUM, FLOAT32 = 0, 0, 7


class UniqueId(ctypes.Structure):
    """ncclUniqueId, by which the ranks of a communicator find each other."""

    _fields_ = (("internal", ctypes.c_ubyte * UNIQUE_ID_BYTES),)


def loaded_library() -> ctypes.CDLL:
    """Return the NCCL library that torch has loaded; raises Skipped if there is none, or it is linked into torch."""
    name = "librccl.so.1" if torch.version.hip else "libnccl.so.2"
    try:
        library = ctypes.CDLL(name, mode=os.RTLD_NOW | os.RTLD_NOLOAD)
    except OSError:
        raise Skipped(f"torch has not loaded {name}, so NCCL cannot be called directly") from None
    return declare(library)


def declare(library: ctypes.CDLL) -> ctypes.CDLL:
    """Declare the argument and return types of the functions used here."""
    pointer, number = ctypes.c_void_p, ctypes.c_int
    library.ncclGetUniqueId.argtypes = [ctypes.POINTER(UniqueId)]
    library.ncclCommInitRank.argtypes = [ctypes.POINTER(pointer), number, UniqueId, number]
    library.ncclAllReduce.argtypes = [pointer, pointer, ctypes.c_size_t, number, number, pointer, pointer]
    library.ncclCommDestroy.argtypes = [pointer]
    library.ncclGetErrorString.argtypes = [number]
    library.ncclGetErrorString.restype = ctypes.c_char_p
    library.ncclGetLastError.argtypes = [pointer]
    library.ncclGetLastError.restype = ctypes.c_char_p
    return library


def agree_on_id(library: ctypes.CDLL, rank: int, device: torch.device) -> UniqueId:
    """Make an id on rank 0 and broadcast it to the default process group."""
    unique_id = UniqueId()
    if rank == 0:
        _check(library, library.ncclGetUniqueId(ctypes.byref(unique_id)), None)
    id_bytes = torch.tensor(list(unique_id.internal), dtype=torch.uint8, device=device)
    dist.broadcast(id_bytes, src=0)
    return UniqueId((ctypes.c_ubyte * UNIQUE_ID_BYTES)(*id_bytes.tolist()))


class Communicator:
    """An NCCL communicator; all ranks construct it together, on their current devices."""

    def __init__(self, library: ctypes.CDLL, unique_id: UniqueId, rank: int, world_size: int) -> None:
        self._library = library
        self._handle = ctypes.c_void_p()
        _check(library, library.ncclCommInitRank(ctypes.byref(self._handle), world_size, unique_id, rank), None)

    def all_reduce(self, source: torch.Tensor, target: torch.Tensor, stream: int) -> None:
        """Enqueue the sum of `source` over all ranks into `target`, which may be the same tensor, on a CUDA stream.

        Both are contiguous fp32 tensors of one length; raises ValueError otherwise, RuntimeError with NCCL's message.
        """
        for tensor in (source, target):
            if tensor.dtype != torch.float32 or not tensor.is_contiguous() or tensor.numel() != source.numel():
                raise ValueError(f"needs contiguous fp32 tensors of one length, not {tensor.dtype} {tensor.shape}")
        call = self._library.ncclAllReduce
        result = call(source.data_ptr(), target.data_ptr(), source.numel(), FLOAT32, SUM, self._handle, stream)
        _check(self._library, result, self._handle)

    def close(self) -> None:
        """Destroy the communicator."""
        _check(self._library, self._library.ncclCommDestroy(self._handle), None)


def _check(library: ctypes.CDLL, result: int, handle: Any) -> None:
    if result != SUCCESS:
        words = [library.ncclGetErrorString(result), library.ncclGetLastError(handle)]
        raise RuntimeError(f"NCCL: {': '.join(word.decode() for word in words if word)}")
