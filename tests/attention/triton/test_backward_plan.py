import pytest
import torch

from pipeline.attention.inputs import Traits
from pipeline.attention.triton import backward_ends, backward_plan, gpu, in_parts, kernel_sets
from pipeline.attention.triton.kernel_sets import has_gluon
from pipeline.attention.triton.mask import CAUSAL
from pipeline.attention.triton.problem import Problem
from tools.tuning.every_gpu import GPUS

pytestmark = pytest.mark.skipif(not has_gluon(), reason="Triton has no Gluon")


@pytest.fixture
def planned(monkeypatch):
    """Return a function that plans a backward pass and returns the plan and the names of its kernels."""
    from pipeline.attention.triton.gluon import launches

    names = []

    def launch(kernel, _programs, dtypes, scalars, constants, *_options):
        assert len([*dtypes, *scalars]) == len([name for name in kernel.arg_names if name not in constants])
        names.append(kernel.fn.__name__)

    monkeypatch.setattr(gpu, "_gpu_of", lambda _device: GPUS["sm_90"])
    monkeypatch.setattr(kernel_sets, "is_interpreted", lambda: False)
    monkeypatch.setattr(launches, "compile_launch", launch)
    for module in (backward_plan, backward_ends, in_parts):
        monkeypatch.setattr(module, "prepare_launch", launch)
    for module in (backward_plan, backward_ends):
        monkeypatch.setattr(module, "like", lambda shape, *_: shape)
    monkeypatch.setattr(kernel_sets, "is_plain_asked", lambda: False)

    def plan(head_dim, repeatable=False, dtype=torch.bfloat16, shape=(4, 16, 4096)):
        names.clear()
        shape = torch.Size((*shape, head_dim))
        q = Traits(shape, torch.empty(shape, device="meta").stride(), dtype, torch.device("cuda", 0))
        problem = Problem(q, q, q, None, CAUSAL, head_dim**-0.5, False, 0)
        return backward_plan.backward_plan.__wrapped__(problem, *[q.stride] * 4, repeatable=repeatable), {*names}

    return plan


@pytest.mark.parametrize(
    ("head_dim", "dtype", "shape", "repeatable", "sizes"),
    [
        # δ and LSE in parts take 16 bytes a query, dq's sums whole blocks of 128 queries.
        (64, torch.bfloat16, (4, 16, 1001), False, (64 * 1001 * 4, 64 * 1001 * 4, 64 * 1024 * 64)),
        (80, torch.bfloat16, (4, 16, 1001), False, (64 * 1001 * 4, 64 * 1001 * 4, 64 * 1024 * 80)),
        # In fp32, each head's row is padded to four; without sums if dq has its own kernel or is their place.
        (64, torch.bfloat16, (4, 16, 4001), True, (64 * 4004, 64 * 4004)),
        (256, torch.bfloat16, (4, 16, 1001), False, (64 * 1004, 64 * 1004)),
        (64, torch.float32, (1, 1, 1505), False, (1536, 1536)),
        (32, torch.bfloat16, (1, 1, 1505), False, (1536, 1536, 1505 * 32)),
    ],
)
def test_working_memory_holds_delta_the_lse_and_sums_of_dq(planned, head_dim, dtype, shape, repeatable, sizes):
    plan, _ = planned(head_dim, repeatable, dtype, shape)
    assert plan.memory.sizes == sizes
    assert plan.memory.like == (sum(sizes),)
    assert plan.like_dk_dv == (2, *shape, head_dim)


SUMMED, APART = {"hopper_backward_kernel", "unpacked_kernel"}, {"key_value_kernel", "query_kernel"}
WIDE = {"hopper_wide_key_value_kernel", "hopper_wide_query_kernel"}


@pytest.mark.parametrize(
    ("head_dims", "repeatable", "kernels"),
    [((64, 128), False, SUMMED), ((64, 128), True, APART), ((136, 256), False, WIDE), ((136, 256), True, WIDE)],
)
def test_one_kernel_sums_dq_too_unless_heads_are_wide_or_dq_must_be_repeatable(planned, head_dims, repeatable, kernels):
    for head_dim in head_dims:
        plan, names = planned(head_dim, repeatable)
        assert names == {"delta_kernel", *kernels}
        assert (plan.query is None) == (kernels == SUMMED)


@pytest.mark.parametrize("head_dim", [40, 64, 128])
def test_fp32_is_split_and_dq_has_its_own_kernel(planned, head_dim):
    plan, names = planned(head_dim, dtype=torch.float32)
    assert names == {"delta_kernel", "parts_kernel", "hopper_parts_key_value_kernel", "hopper_parts_query_kernel"}
    assert plan.in_parts.shapes == ((3, 64, 4096, head_dim),) * 4


@pytest.mark.parametrize(
    ("shape", "dtype", "is_short"),
    [
        ((1, 1, 1024), torch.bfloat16, True),
        ((1, 1, 1025), torch.bfloat16, False),
        ((1, 1, 512), torch.float32, True),
        ((1, 1, 513), torch.float32, False),
        ((1, 8, 512), torch.float32, True),
        ((1, 17, 512), torch.float32, False),
    ],
)
def test_short_sequences_have_one_kernel_but_in_fp32_only_a_few_sequences(planned, shape, dtype, is_short):
    _, names = planned(32, dtype=dtype, shape=shape)
    assert (names == {"short_kernel"}) == is_short
