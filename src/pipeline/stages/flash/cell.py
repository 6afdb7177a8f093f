"""How fast and accurate are our attention kernels beside PyTorch's and FlashAttention-4?"""

from dataclasses import dataclass
from itertools import product

from pipeline.cells.fields import axis
from pipeline.errors import UserError
from pipeline.formulas.attention import Shape
from pipeline.subjects.naming import Measured

SPLIT_AXIS = "dtype"
READS = ("ceilings",)
DTYPES = ("bf16", "fp16", "fp32")
# How fp32 is multiplied on tensor cores: as three products in TF32, which are as accurate.
THREE_TF32 = "3×TF32"
BOTH_PHASES = "forward_backward"
PHASES = ("forward", "backward", BOTH_PHASES)
GROUP_AXIS = "query_heads_per_kv_head"
# The assignment's leaderboard: 16 heads of 64, causal.
LEADERBOARD = {"batch_size": 1, "num_heads": 16, GROUP_AXIS: 1, "seq_len": 16384, "head_dim": 64, "is_causal": True}
SUBJECTS = Measured("attention", {"phase": BOTH_PHASES}, first=LEADERBOARD, exercise="leaderboard")
OURS = ("triton", "tiled")
# The plain Triton kernels with square tiles, by the queries (and keys) in a tile.
TILES = {f"triton_{side}": side for side in (16, 32, 64, 128, 256)}
SDPA_BACKENDS = ("sdpa_flash", "sdpa_cudnn", "sdpa_efficient")
# On a CPU `sdpa`, torch's own choice, replaces the GPU backends.
PEERS = ("eager", "compiled_eager", "sdpa", *SDPA_BACKENDS, "flex")
FA4 = "fa4"
GPU_ONLY = ("triton", *TILES, *SDPA_BACKENDS, "flex", FA4)
# Peers from separate packages (pipeline.peers): another version makes a cell stale.
PACKAGES = (FA4,)
# These are compiled for every shape, which takes longer than timing everything, so only at several heads, as in models.
# The stage `attention` measures compiled attention at one head.
COMPILED = ("compiled_eager", "flex", FA4)
# Implementations and phases that also run back to back for `sustained_s`, on a GPU at the shapes of real models.
SUSTAINED = tuple(product(("triton", "sdpa_cudnn", FA4), ("forward", BOTH_PHASES)))


@dataclass(frozen=True)
class Cell:
    """One attention problem; the implementations are its rows.

    num_heads: of queries. query_heads_per_kv_head: how many of them share one head of keys and values, more than 1 for
    grouped-query attention (GQA). repeat: the number of a cell that measures the same again, in its own process.
    """

    gpus = 1  # on a machine that has any

    dtype: str = axis("bf16", allowed=DTYPES)
    head_dim: int = axis(64, minimum=1)
    seq_len: int = axis(1024, minimum=1)
    batch_size: int = axis(1, minimum=1)
    num_heads: int = axis(1, minimum=1)
    query_heads_per_kv_head: int = axis(1, minimum=1)
    is_causal: bool = axis(True)
    repeat: int = axis(1, minimum=1)

    def __post_init__(self) -> None:
        """Raise UserError, one line, if the query heads do not divide evenly among the key/value heads."""
        if self.num_heads % self.query_heads_per_kv_head:
            raise UserError(
                f"num_heads must be a multiple of {GROUP_AXIS} ({self.query_heads_per_kv_head}), got {self.num_heads}"
            )

    @property
    def shape(self) -> Shape:
        """The problem without its dtype."""
        return Shape(
            self.batch_size,
            self.num_heads,
            self.seq_len,
            self.head_dim,
            self.is_causal,
            self.query_heads_per_kv_head,
        )

    def impls(self, tiles: bool = False) -> tuple[str, ...]:
        """Return the implementations to compare, on any device; tiles: the setting of this name."""
        of_tiles = TILES if tiles else ()
        return tuple(impl for impl in (*OURS, *of_tiles, *PEERS, FA4) if self.num_heads > 1 or impl not in COMPILED)

    def row_keys(self) -> list[dict[str, str]]:
        """Return the keys of the rows of a cell that could not be measured: every row."""
        return [{"impl": impl, "phase": phase} for impl in self.impls() for phase in PHASES]


@dataclass(frozen=True)
class Settings:
    """Shared by all cells: the stop rule of each row, the limit above which a call is too slow to be sampled.

    sustained_s: how long our Triton kernels, cuDNN and FlashAttention-4 run back to back, forward and forward +
    backward each, on a GPU at several heads; 0 for not at all.
    tiles: whether our Triton kernels also run with the square tiles of TILES.
    check_timeout_s and timeout_s end the check of an implementation of the user's own, and the measurement with it.
    """

    min_samples: int = axis(10, minimum=3)
    max_samples: int = axis(100, minimum=3)
    rel_error: float = axis(0.005, minimum=0)
    budget_s: float = axis(0.5, minimum=0)
    call_limit_s: float = axis(0.5, minimum=0)
    tiles: bool = axis(False)
    sustained_s: float = axis(2.0, minimum=0)
    unstable_rel_error: float = axis(0.05, minimum=0)
    check_timeout_s: float = axis(300.0, minimum=1)
    timeout_s: float = axis(600.0, minimum=1)
    threads: int = axis(0, minimum=0)
