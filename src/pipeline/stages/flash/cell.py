"""How fast, how exact and how lean is FlashAttention-2, beside what torch offers, over length and head_dim?"""

from dataclasses import dataclass

from pipeline.cells.fields import axis
from pipeline.formulas.attention import Shape

SPLIT_AXIS = "dtype"
DTYPES = ("bf16", "fp32")
PHASES = ("forward", "backward", "forward_backward")
OURS = ("triton", "tiled")
SDPA_BACKENDS = ("sdpa_flash", "sdpa_cudnn", "sdpa_efficient")
# On a CPU torch's own choice, `sdpa`, stands for the backends that are a GPU's.
PEERS = ("eager", "compiled_eager", "sdpa", *SDPA_BACKENDS, "flex")
GPU_ONLY = ("triton", *SDPA_BACKENDS, "flex")


@dataclass(frozen=True)
class Cell:
    """One attention problem; implementations are its rows.

    repeat: numbers cells that measure the same, each in a process of its own.
    """

    dtype: str = axis("bf16", allowed=DTYPES)
    head_dim: int = axis(64, minimum=1)
    seq_len: int = axis(1024, minimum=1)
    batch_size: int = axis(1, minimum=1)
    num_heads: int = axis(1, minimum=1)
    is_causal: bool = axis(True)
    repeat: int = axis(1, minimum=1)

    @property
    def gpus(self) -> int:
        """The GPUs it takes on a machine that has any."""
        return 1

    def shares_host(self, on_gpu: bool) -> bool:
        """On a GPU it times kernels by the GPU's clock, launches queued ahead: docs/side-by-side.md."""
        return on_gpu

    @property
    def shape(self) -> Shape:
        """The problem without its dtype."""
        return Shape(self.batch_size, self.num_heads, self.seq_len, self.head_dim, self.is_causal)

    def row_keys(self) -> list[dict[str, str]]:
        """Return what names each row: the rows of a cell that could not be measured."""
        return [{"impl": impl, "phase": phase} for impl in (*OURS, *PEERS) for phase in PHASES]


@dataclass(frozen=True)
class Settings:
    """What every cell of the stage shares: the stop rule of each row, and when a call is too slow to be sampled."""

    min_samples: int = axis(10, minimum=3)
    max_samples: int = axis(100, minimum=3)
    rel_error: float = axis(0.005, minimum=0)
    budget_s: float = axis(0.5, minimum=0)
    call_limit_s: float = axis(0.5, minimum=0)
    unstable_rel_error: float = axis(0.05, minimum=0)
    threads: int = axis(0, minimum=0)
