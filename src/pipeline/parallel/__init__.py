"""The subject: several processes that train together.

Data-parallel training gives every process (a *rank*) a replica of the model and a part of the batch, and averages the
gradients, so that all replicas take the step that one process would take with the whole batch:

    model = BucketedDDP(model, bucket_size_mb=25)
    optimizer = ShardedOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3)
    for tokens, targets in own_part_of_each_batch:
        loss(model(tokens), targets).backward()
        model.finish_gradient_synchronization()
        optimizer.step()
        optimizer.zero_grad()

Four classes of one interface differ in when and in what pieces they average:

- `NaiveDDP(module)`: after the backward pass, an all-reduce a parameter, one after the other.
- `FlatDDP(module)`: after it, one all-reduce of all gradients in one flat buffer (a buffer a dtype).
- `OverlapDDP(module)`: during it, an all-reduce a parameter, as soon as its gradient is there.
- `BucketedDDP(module, bucket_size_mb)`: during it, an all-reduce a bucket, as soon as its gradients are there; with
  None for the size, one bucket.

The last two start their all-reduces in the reverse order of the parameters: one that gets no gradient holds up all
before it until the finish.

`no_sync()` accumulates gradients without communication, `remove_hooks()` ends the work during backward passes;
after a backward pass that failed, `discard_gradients()` on every rank starts over.
`ShardedOptimizer(params, optimizer_cls, **kwargs)` keeps on each rank the optimizer state of a share of the parameters.
`run_ranks(function, world_size, ...)` starts the processes and their process group.
"""

from typing import Any

__all__ = ["BucketedDDP", "FlatDDP", "NaiveDDP", "OverlapDDP", "ShardedOptimizer"]


# Lazy (PEP 562): whoever imports one module of this package does not run them all.
def __getattr__(name: str) -> Any:
    if name in ("FlatDDP", "NaiveDDP"):
        from pipeline.parallel import ddp

        return getattr(ddp, name)
    if name in ("BucketedDDP", "OverlapDDP"):
        from pipeline.parallel import overlap

        return getattr(overlap, name)
    if name == "ShardedOptimizer":
        from pipeline.parallel import sharded_optimizer

        return sharded_optimizer.ShardedOptimizer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
