"""Our classes behind the functions that the course's tests call, those of its 2025 and of its 2026 edition."""

from pipeline.attention import FlashAttentionTiled, FlashAttentionTriton
from pipeline.parallel import FSDP, BucketedDDP, OverlapDDP, ShardedOptimizer


def get_flashattention_autograd_function_pytorch():
    return FlashAttentionTiled


def get_flashattention_autograd_function_triton():
    return FlashAttentionTriton


def get_ddp_individual_parameters(module):
    return OverlapDDP(module)


def ddp_individual_parameters_on_after_backward(ddp_model, optimizer):
    ddp_model.finish_gradient_synchronization()


def get_ddp_bucketed(module, bucket_size_mb):
    return BucketedDDP(module, bucket_size_mb)


def ddp_bucketed_on_train_batch_start(ddp_model, optimizer):
    pass


def ddp_bucketed_on_after_backward(ddp_model, optimizer):
    ddp_model.finish_gradient_synchronization()


def get_ddp(module):
    return OverlapDDP(module)


def ddp_on_after_backward(ddp_model, optimizer):
    ddp_model.finish_gradient_synchronization()


def get_fsdp(module, compute_dtype=None):
    return FSDP(module, compute_dtype)


def fsdp_on_after_backward(fsdp_model, optimizer):
    fsdp_model.finish_gradient_synchronization()


def fsdp_gather_full_params(fsdp_model):
    return fsdp_model.full_state_dict()


def get_sharded_optimizer(params, optimizer_cls, **kwargs):
    return ShardedOptimizer(params, optimizer_cls, **kwargs)
