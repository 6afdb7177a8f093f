"""A fake pynvml with made-up GPUs."""

from dataclasses import dataclass, field

import pynvml

H200 = "NVIDIA H200"


@dataclass
class FakeGpu:
    """One GPU as NVML sees it; `answers` maps an NVML function to its result, or to a function that returns it."""

    index: int
    name: str = H200
    answers: dict = field(default_factory=dict)


class FakeNvml:
    """Stands in for pynvml: constants and errors are the real ones, the GPUs are made up."""

    def __init__(self, gpus=()):
        self.gpus = gpus

    def __getattr__(self, name):
        if not (name.startswith("nvmlDevice") or name in ("nvmlInit", "nvmlSystemGetDriverVersion")):
            return getattr(pynvml, name)
        return lambda *arguments: self.call(name, *arguments)

    def call(self, name, gpu=None, *rest):
        known = {
            "nvmlInit": lambda: None,
            "nvmlSystemGetDriverVersion": lambda: "580.1",
            "nvmlDeviceGetCount": lambda: len(self.gpus),
            "nvmlDeviceGetHandleByIndex": lambda: self.gpus[gpu],
            "nvmlDeviceGetUUID": lambda: f"GPU-{gpu.index}{gpu.index}{gpu.index}-abc",
            "nvmlDeviceGetIndex": lambda: gpu.index,
            "nvmlDeviceGetName": lambda: gpu.name,
        }
        if name in known:
            return known[name]()
        if name not in getattr(gpu, "answers", {}):  # a handle, or a text that names one
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        answer = gpu.answers[name]
        return answer(*rest) if callable(answer) else answer
