"""The environment variables that libraries read when they are loaded or first called, and those that cells set."""

import hashlib
import os
from collections.abc import Mapping

# Thread pools and products on the CPU, allocators and the loader, torch and its compiler, GPUs and links.
PREFIXES = (
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "DNNL_", "ONEDNN_", "ATEN_", "NPY_"),
    *("MALLOC_", "TCMALLOC_", "MIMALLOC_", "GLIBC_", "LD_"),
    *("TORCH", "PYTORCH", "TRITON", "INDUCTOR_", "AOT", "PARTITIONER_"),
    *("CUDA", "CUBLAS", "CUDNN", "CUTLASS_", "NCCL_", "GLOO_", "NVIDIA_TF32", "HIP_", "HSA_", "ROC", "MIOPEN_"),
)
# A cell sets them to the cores that it takes.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
# The compiler makes its kernels in the cell's own process: it has a handful of them, and to start inductor's pool of
# processes, each of which imports torch, takes longer than they do. Read when inductor is imported.
COMPILE_IN_PROCESS = {"TORCHINDUCTOR_COMPILE_THREADS": "1"}
SET_BY_CELLS = {*THREAD_VARIABLES, *COMPILE_IN_PROCESS}
LOADER = "LD_"


def library_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables by which libraries change what they do, for a record, the same before and in a cell.

    Without those that a cell sets itself, that choose among GPUs or that say where something lies. Paths that the
    loader is given are digests: they may tell whose machine it is.
    """
    return {
        name: hashlib.sha256(os.fsencode(value)).hexdigest()[:16] if name.startswith(LOADER) else value
        for name, value in sorted(environment.items())
        if name.startswith(PREFIXES)
        and name not in SET_BY_CELLS
        and not name.endswith("VISIBLE_DEVICES")
        and (name.startswith(LOADER) or not value.startswith("/"))
    }
