"""The environment variables that libraries read when they are loaded or first called, and those that cells set."""

import hashlib
import os
from collections.abc import Mapping

# By line: CPU thread pools and BLAS; allocators and the dynamic loader; torch and its compiler; GPUs and links.
PREFIXES = (
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "DNNL_", "ONEDNN_", "ATEN_", "NPY_"),
    *("MALLOC_", "TCMALLOC_", "MIMALLOC_", "GLIBC_", "LD_"),
    *("TORCH", "PYTORCH", "TRITON", "INDUCTOR_", "AOT", "PARTITIONER_"),
    *("CUDA", "CUBLAS", "CUDNN", "CUTLASS_", "NCCL_", "GLOO_", "NVIDIA_TF32", "HIP_", "HSA_", "ROC", "MIOPEN_"),
)
# Each cell sets these to the number of cores it uses.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
# Compile in the cell's own process: a cell has only a handful of kernels, and starting inductor's process pool, where
# each process imports torch, takes longer than compiling them. Inductor reads this when it is imported.
COMPILE_IN_PROCESS = {"TORCHINDUCTOR_COMPILE_THREADS": "1"}
SET_BY_CELLS = {*THREAD_VARIABLES, *COMPILE_IN_PROCESS}
LOADER = "LD_"


def library_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that change what libraries do, for a record; the same before a cell starts and inside it.

    Left out are variables that cells set themselves, that choose GPUs or that hold an absolute path. The loader's
    variables (LD_*) are hashed instead, since their paths may reveal whose machine it is.
    """
    return {
        name: hashlib.sha256(os.fsencode(value)).hexdigest()[:16] if name.startswith(LOADER) else value
        for name, value in sorted(environment.items())
        if name.startswith(PREFIXES)
        and name not in SET_BY_CELLS
        and not name.endswith("VISIBLE_DEVICES")
        and (name.startswith(LOADER) or not value.startswith("/"))
    }
