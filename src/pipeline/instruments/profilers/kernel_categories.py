"""Sort kernels and operators into kinds of work by name; the first rule that matches decides.

| category | what it holds |
| --- | --- |
| communication | collectives and point-to-point transfers between processes |
| optimizer | kernels launched in the range `optimizer`, and multi-tensor kernels, which PyTorch's optimizers use |
| attention | fused attention kernels: flash, cuDNN's, memory-efficient |
| normalisation | layer norm and RMS norm, forward and backward |
| softmax | softmax and log-softmax, forward and backward |
| matmul | matrix products, with their split-K reductions and epilogues |
| copy | copies, casts, fills, gathers and concatenations: bytes without arithmetic |
| reduction | sums, means, minima and maxima; losses; the gradient of an embedding |
| elementwise | arithmetic on each element by itself |
| other | names that match no rule; on a CPU also views and allocations |

There are three kinds of names: kernels as CUPTI reports them, with their template arguments; copies and fills by the
device's own engines; and on a CPU, PyTorch's operators ("aten::mm").
"""

import re
from functools import cache

IDLE = "idle"  # the part of a step in which no kernel ran
# Where several overlap, `budget` gives the time to the first, so communication only gets what nothing hides.
CATEGORIES = (
    "matmul",
    "attention",
    "softmax",
    "normalisation",
    "elementwise",
    "reduction",
    "copy",
    "optimizer",
    "other",
    "communication",
)
OPTIMIZER_RANGE = "optimizer"

_KERNEL_RULES = (
    ("communication", r"nccl|rccl|nvshmem|multimem_|gloo|c10d|(one|two)_shot_all_reduce"),
    ("optimizer", r"multi_tensor_apply|FusedAdam|fused_adam"),
    ("attention", r"flash|fmha|sdpa|flex_attention|AttentionKernel|attention.*(fwd|bwd|forward|backward)"),
    # The Triton kernels of pipeline.attention and pipeline.model, which are named after their functions.
    ("attention", r"^((forward|combine|delta|key_value|query)_kernel$|hopper_\w+_kernel$)"),
    ("elementwise", r"^(swiglu|rotary)_"),
    ("normalisation", r"(layer|rms|group|batch)_?norm|(Layer|RMS|Group|Batch)Norm|GammaBeta|RowwiseMoments"),
    ("softmax", r"softmax|soft_max|SoftMax"),
    # Inductor names a kernel after what it fuses: poi is elementwise only; per and red are reductions; tem is a
    # template, which is a matmul unless it is attention. A reduction with rsqrt is a decomposed norm.
    ("normalisation", r"^triton_(per|red)_.*rsqrt"),
    ("reduction", r"^triton_(per|red)_"),
    ("matmul", r"^triton_(tem|mm|bmm)_"),
    ("elementwise", r"^triton_poi_"),
    ("matmul", r"gemm|gemv|nvjet|splitKreduce|cublasLt::|dot_kernel|cutlass.*(Kernel|kernel)"),
    ("reduction", r"embedding_backward|compute_grad_weight|sum_and_scatter|krn_partial|EmbeddingBackward"),
    # With many tokens, the gradient of an embedding sorts them before it sums.
    ("reduction", r"Device(RadixSort|UniqueByKey|Compact|Scan)|partial_segments"),
    ("reduction", r"nll_loss_forward|cross_entropy"),
    ("elementwise", r"nll_loss_backward"),
    (
        "copy",
        r"[Mm]emcpy|[Mm]emset|copy_kernel|CatArray|FillFunctor|indexSelect|gather_kernel|index_elementwise|"
        r"scatter_gather|chunk_cat|split_with_sizes_copy|transpose",
    ),
    ("reduction", r"reduce_kernel|Reduce|ScanKernel|scan_kernel|_reduce_"),
    ("elementwise", r"elementwise|triu_tril|pointwise|silu|Functor"),
)

_OPERATOR_RULES = (
    ("communication", r"nccl|gloo|c10d"),
    ("optimizer", r"_foreach_|_fused_adam"),
    ("attention", r"scaled_dot_product|_attention"),
    ("normalisation", r"(layer|rms|group|batch)_norm"),
    ("softmax", r"softmax"),
    ("matmul", r"::(\w*mm|mv|dot|matmul|linear|mkldnn\w*linear\w*|einsum)$"),
    ("reduction", r"::(sum|mean|prod|norm|logsumexp|cumsum|a?max|a?min|arg(max|min)|any|all)$"),
    ("reduction", r"embedding_dense_backward|nll_loss\w*_forward|cross_entropy"),
    (
        "copy",
        r"::(copy_|clone|contiguous|to|_to_copy|type_as|cat|stack|fill_|zero_|zeros\w*|ones\w*|full\w*|new_full|new_zeros|"
        r"embedding|index\w*|gather|scatter\w*|(slice|select)_backward|repeat\w*|constant_pad_nd)$",
    ),
    (
        "other",
        r"::(\w*view\w*|\w*reshape\w*|as_strided\w*|expand\w*|t|transpose|permute|movedim|unsqueeze\w*|squeeze\w*|slice|"
        r"select|narrow|split\w*|chunk|unbind|unflatten|flatten|detach\w*|alias|lift_fresh|\w*empty\w*|resize_|"
        r"set_|resolve_\w+|item|_local_scalar_dense|result_type|is_nonzero|random_|uniform_|normal_)$",
    ),
    ("elementwise", r""),  # any other operator is elementwise
)


def category(name: str, path: str = "") -> str:
    """Return the category of a kernel or an operator launched in the range with this path."""
    found = _by_name(name)
    in_optimizer = OPTIMIZER_RANGE in path.split("/")
    return "optimizer" if in_optimizer and found != "communication" else found


@cache
def _by_name(name: str) -> str:
    rules = _OPERATOR_RULES if re.match(r"(aten|mkldnn|onednn|c10d|gloo)::?", name) else _KERNEL_RULES
    return next((found for found, pattern in rules if re.search(pattern, name)), "other")
