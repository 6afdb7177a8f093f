"""Data-parallel training, which the stages `ddp`, `sharding` and `fsdp` measure.

Every process (a *rank*) has a replica of the model and a part of the batch. Gradients are averaged, so all replicas
take the step that one process would take with the whole batch:

    model = BucketedDDP(model, bucket_size_mb=25)
    optimizer = ShardedOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3)
    for tokens, targets in own_part_of_each_batch:
        loss(model(tokens), targets).backward()
        model.finish_gradient_synchronization()
        optimizer.step()
        optimizer.zero_grad()

Four classes share one interface and differ in when they average gradients and in what pieces:

- `NaiveDDP(module)`: one all-reduce per parameter, one after the other, after the backward pass.
- `FlatDDP(module)`: one all-reduce of all gradients in a flat buffer (one per dtype), after the backward pass.
- `OverlapDDP(module)`: one all-reduce per parameter during the backward pass, as soon as its gradient is ready.
- `BucketedDDP(module, bucket_size_mb)`: one all-reduce per bucket during the backward pass, as soon as its gradients
  are ready; None means a single bucket.

The last two start all-reduces in reverse order of the parameters: a parameter without a gradient delays all earlier
ones until `finish_gradient_synchronization()`.

`FSDP(module, compute_dtype, shard)`, with the same interface, keeps on each rank only a shard of the parameters,
gradients and optimizer state.

`no_sync()` accumulates gradients without communication.
After a failed backward pass, `discard_gradients()` on every rank starts over.
`ShardedOptimizer(params, optimizer_cls, **kwargs)` keeps on each rank the state of only a share of the parameters.
`run_ranks(function, world_size, ...)` starts the processes and their process group.
"""

from typing import Any

__all__ = ["FSDP", "BucketedDDP", "FlatDDP", "NaiveDDP", "OverlapDDP", "ShardedOptimizer"]


# Lazy (PEP 562), so that importing one module of this package does not import them all.
def __getattr__(name: str) -> Any:
    if name in ("FlatDDP", "NaiveDDP"):
        from pipeline.parallel import ddp

        return getattr(ddp, name)
    if name in ("BucketedDDP", "OverlapDDP"):
        from pipeline.parallel import overlap

        return getattr(overlap, name)
    if name == "FSDP":
        from pipeline.parallel import fsdp

        return fsdp.FSDP
    if name == "ShardedOptimizer":
        from pipeline.parallel import sharded_optimizer

        return sharded_optimizer.ShardedOptimizer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
