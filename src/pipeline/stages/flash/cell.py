"""How do our FlashAttention-2 kernels compare with PyTorch's in speed, error and memory, by length and head_dim?"""

from dataclasses import dataclass

from pipeline.cells.fields import axis
from pipeline.formulas.attention import Shape
from pipeline.subjects.naming import Measured

SPLIT_AXIS = "dtype"
DTYPES = ("bf16", "fp32")
BOTH_PHASES = "forward_backward"
PHASES = ("forward", "backward", BOTH_PHASES)
# The assignment's leaderboard: 16 heads of 64, causal.
LEADERBOARD = {"batch_size": 1, "num_heads": 16, "seq_len": 16384, "head_dim": 64, "is_causal": True}
SUBJECTS = Measured("attention", {"phase": BOTH_PHASES}, first=LEADERBOARD, exercise="leaderboard")
OURS = ("triton", "tiled")
SDPA_BACKENDS = ("sdpa_flash", "sdpa_cudnn", "sdpa_efficient")
# On a CPU `sdpa`, torch's own choice, replaces the GPU backends.
PEERS = ("eager", "compiled_eager", "sdpa", *SDPA_BACKENDS, "flex")
GPU_ONLY = ("triton", *SDPA_BACKENDS, "flex")


@dataclass(frozen=True)
class Cell:
    """One attention problem; the implementations are its rows.

    repeat: the number of a cell that measures the same again, in its own process.
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
        """The GPUs that the cell uses if there are any."""
        return 1

    def shares_host(self, on_gpu: bool) -> bool:
        """Return True on a GPU: kernels are timed by the GPU, with launches queued ahead: docs/side-by-side.md."""
        return on_gpu

    @property
    def shape(self) -> Shape:
        """The problem without its dtype."""
        return Shape(self.batch_size, self.num_heads, self.seq_len, self.head_dim, self.is_causal)

    def row_keys(self) -> list[dict[str, str]]:
        """Return the keys of the rows of a cell that could not be measured: every row."""
        return [{"impl": impl, "phase": phase} for impl in (*OURS, *PEERS) for phase in PHASES]


@dataclass(frozen=True)
class Settings:
    """Shared by all cells: the stop rule of each row, the limit above which a call is too slow to be sampled.

    check_timeout_s and timeout_s end the check of an implementation of the user's own, and the measurement with it.
    """

    min_samples: int = axis(10, minimum=3)
    max_samples: int = axis(100, minimum=3)
    rel_error: float = axis(0.005, minimum=0)
    budget_s: float = axis(0.5, minimum=0)
    call_limit_s: float = axis(0.5, minimum=0)
    unstable_rel_error: float = axis(0.05, minimum=0)
    check_timeout_s: float = axis(300.0, minimum=1)
    timeout_s: float = axis(600.0, minimum=1)
    threads: int = axis(0, minimum=0)
