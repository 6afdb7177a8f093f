"""Shorten kernel names."""

import re

_PREFIXES = re.compile(r"\(anonymous namespace\)::|<unnamed>::|^void |^std::enable_if<.*?>::type ")
_CUTLASS = re.compile(r"cutlass\w*::Kernel2?<(\w+)>")
# PyTorch instantiates these templates for many operations; the template's arguments name the operation.
_TEMPLATES = ("elementwise_kernel", "reduce_kernel", "multi_tensor_apply_kernel")
_OPERATION = re.compile(r"\w+Functor\w*|\w+_functor|\w+Ops|\w+_kernel(?:_cuda|_impl)?\b")
_WRAPPERS = ("BinaryFunctor", "UnaryFunctor", "AUnaryFunctor", "BUnaryFunctor", "gpu_kernel_impl")


def short_name(name: str) -> str:
    """Shorten a kernel's name to its function and, for a template of many operations, the operation.

    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, ...>(...)" becomes
    "vectorized_elementwise_kernel<CUDAFunctor_add>". Names without arguments stay as they are: those of cuBLAS, Triton,
    PyTorch's operators and the device's own copies.
    """
    text = _PREFIXES.sub("", name)
    if cutlass := _CUTLASS.match(text):
        return cutlass[1]
    # The leading identifier.
    head = re.split(r"[^\w:]", text, maxsplit=1)[0]
    arguments = text[len(head) :]
    if not arguments.startswith(("<", "(")):
        return text
    function = "::".join(head.split("::")[-2:]) if head.endswith("::kernel") else head.rpartition("::")[2]
    if not function.endswith(_TEMPLATES):
        return function
    operations = [name for name in _OPERATION.findall(arguments) if name not in _WRAPPERS]
    return f"{function}<{operations[0]}>" if operations else function
