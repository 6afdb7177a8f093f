"""Undo a user's implementation's changes to process-wide state, such as the number of threads."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import torch

from pipeline.compat.torch_private import get_fp32_precision, set_fp32_precision

STARTS_THREADS = 2**17  # elements: enough that every thread of the pool gets some


@dataclass(frozen=True)
class Setting:
    """One part of the state: its name, and how to read and set it."""

    name: str
    get: Callable[[], Any]
    set: Callable[[Any], object]

    def value(self) -> Any:
        """Return its value; None if torch raises because its two APIs for it disagree."""
        try:
            return self.get()
        except RuntimeError:
            return None


def _attributes(of: str, owner: Any, *names: str) -> list[Setting]:
    return [Setting(of + name, partial(getattr, owner, name), partial(setattr, owner, name)) for name in names]


def _set_threads(threads: int) -> None:
    torch.set_num_threads(threads)
    torch.ones(STARTS_THREADS).sum()  # starts them now, outside the next call's time


def _no_default_device(_device: torch.device) -> None:
    torch.set_default_device(None)  # setting it to the CPU would slow every call


HALVES = ("fp16", "bf16")
SETTINGS = (
    *_attributes("time.", time, "perf_counter", "perf_counter_ns", "monotonic", "time"),
    *_attributes("torch.cuda.", torch.cuda, "Event", "synchronize"),
    Setting("num_threads", torch.get_num_threads, _set_threads),
    Setting("detect_anomaly", torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
    Setting("deterministic_debug_mode", torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    Setting("default_dtype", torch.get_default_dtype, torch.set_default_dtype),
    Setting("default_device", torch.get_default_device, _no_default_device),
    Setting("grad_enabled", torch.is_grad_enabled, torch.set_grad_enabled),
    *(
        Setting(
            f"autocast on {kind}", partial(torch.is_autocast_enabled, kind), partial(torch.set_autocast_enabled, kind)
        )
        for kind in ("cpu", "cuda")
    ),
    *_attributes("cudnn.", torch.backends.cudnn, "enabled", "benchmark", "deterministic"),
    *_attributes("", torch.backends.cuda.matmul, *(f"allow_{kind}_reduced_precision_reduction" for kind in HALVES)),
    *(
        Setting(
            f"{name}_sdp",
            getattr(torch.backends.cuda, f"{name}_sdp_enabled"),
            getattr(torch.backends.cuda, f"enable_{name}_sdp"),
        )
        for name in ("flash", "mem_efficient", "cudnn", "math")
    ),
    # Whether products use TF32: torch's old API first, then the new one, which the old one sets too.
    Setting("float32_matmul_precision", torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    *_attributes("cudnn.", torch.backends.cudnn, "allow_tf32"),
    *(
        Setting("fp32_precision", partial(get_fp32_precision, *place), partial(set_fp32_precision, *place))
        for place in (("generic", "all"), *product(("cuda", "mkldnn"), ("all", "matmul", "conv", "rnn")))
    ),
)
_changes: dict[str, str] = {}


def read() -> Sequence[Any]:
    """Return the state as it is, for `restore`."""
    return [setting.value() for setting in SETTINGS]


def restore(state: Sequence[Any]) -> None:
    """Restore the state, and record what had changed for `take_changes`."""
    for setting, value, found in zip(SETTINGS, state, read(), strict=True):
        if found != value:
            _changes.setdefault(setting.name, f"{setting.name} from {_told(value)} to {_told(found)}")
        if setting.value() != value and value is not None:  # read again: restoring another setting may have changed it
            setting.set(value)


def take_changes() -> list[str]:
    """Return what was restored since the last call, each setting once, for example `num_threads from 2 to 1`."""
    taken = list(_changes.values())
    _changes.clear()
    return taken


def _told(value: Any) -> str:
    return "a mix" if value is None else getattr(value, "__name__", str(value))
