"""A model in a user's data-parallel wrapper."""

import importlib
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from pipeline.subjects.checking import Wrong
from pipeline.subjects.loading import load
from pipeline.subjects.naming import Subject


def bucket_argument(wrapper: Callable[..., Any]) -> str | None:
    """Return a wrapper's argument for the bucket size, the first with `bucket` in its name; None if it has none."""
    return next((name for name in inspect.signature(wrapper).parameters if "bucket" in name), None)


class Wrapped(nn.Module):
    """A module in the user's wrapper, whose forward pass it runs; the wrapper need not be a module itself.

    Its parameters are those of the wrapped module or, if an FSDP wrapper is a module, the wrapper's, which may be
    shards. Raises Wrong if the wrapper cannot be called with these arguments, and what it raises itself.
    """

    def __init__(
        self,
        module: nn.Module,
        subject: Subject,
        bucket_size_mb: float | None = None,
        compute_dtype: torch.dtype | None = None,
    ):
        super().__init__()
        make = load(subject.use)
        options: dict[str, Any] = {} if compute_dtype is None else {"compute_dtype": compute_dtype}
        if bucket_size_mb is not None:
            options[bucket_argument(make) or "bucket_size_mb"] = bucket_size_mb
        check_call(make, subject, ["module"], options)
        self._is_whole = subject.kind != "fsdp"
        if not self._is_whole:
            _mark_layers(module)
        # In a tuple: otherwise a wrapper that is a module would be registered, and its parameters listed twice.
        self._wrapper = (make(module, **options),)
        self.module = module if self._is_whole or not isinstance(self.wrapper, nn.Module) else self.wrapper
        self._before, self._after, self._gather = (
            load(place) if place else None for place in (subject.before_batch, subject.after_backward, subject.gather)
        )
        self.optimizer: torch.optim.Optimizer | None = None

    @property
    def wrapper(self) -> Any:
        """The user's wrapper."""
        return self._wrapper[0]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the user's before_batch, if any, then the wrapper."""
        if self._before is not None:
            try:
                self._before(self.wrapper, self.optimizer)
            except NotImplementedError:  # the course's file raises it if there is nothing to do
                self._before = None
        return self.wrapper(*args, **kwargs)

    @property
    def finishes(self) -> bool:
        """Whether there is anything to call after backward."""
        return self._after is not None or hasattr(self.wrapper, "finish_gradient_synchronization")

    def finish_gradients(self) -> None:
        """Wait for averaged gradients, by the user's after_backward or the wrapper's own method, if it has either."""
        if self._after is not None:
            self._after(self.wrapper, self.optimizer)
        elif self.finishes:
            self.wrapper.finish_gradient_synchronization()

    def gather(self) -> dict[str, torch.Tensor]:
        """Return all full parameters by name; FSDP's by the user's gather or the wrapper's `full_state_dict`."""
        if self._is_whole:
            return dict(self.module.named_parameters())
        return self._gather(self.wrapper) if self._gather is not None else self.wrapper.full_state_dict()


def check_call(make: Callable[..., Any], subject: Subject, arguments: Sequence[str], options: dict[str, Any]) -> None:
    """Raise Wrong if the user's class or function does not take these arguments, some by position, some by name."""
    signature = inspect.signature(make)
    try:
        signature.bind(*arguments, **options)
    except TypeError as error:
        called = ", ".join([*arguments, *(f"{name}=..." for name in options)])
        raise Wrong(f"is called as {subject.name}({called}), but takes {signature}: {error}") from None


def _mark_layers(module: nn.Module) -> None:
    """Make layers also instances of the course's classes, by which wrappers tell what to shard."""
    try:
        course = importlib.import_module("cs336_basics.model")
    except ImportError:
        return
    for layer in module.modules():
        for ours in (nn.Linear, nn.Embedding):
            theirs = getattr(course, ours.__name__, None)
            if isinstance(layer, ours) and inspect.isclass(theirs) and not isinstance(layer, theirs):
                layer.__class__ = type(ours.__name__, (type(layer), theirs), {})
