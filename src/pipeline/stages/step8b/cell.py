"""How does our whole training step at long context compare with one built from PyTorch's own components?"""

from dataclasses import dataclass

from pipeline.cells.fields import axis
from pipeline.errors import UserError
from pipeline.formulas.sizes import SIZES
from pipeline.ways.cell import TRAIN_STEP

SPLIT_AXIS = "size"

# torch_eager, torch_compiled: torch's own parts; selective: with checkpoints that keep attention's output;
# ours: the fused model under our FSDP; ours_fully_shard: the same under torch's.
SELECTIVE = ("torch_selective", "torch_compiled_selective")
COMPILED = ("torch_compiled", "torch_compiled_selective")
OURS = ("ours", "ours_fully_shard")
IMPLS = ("torch_eager", "torch_compiled", *SELECTIVE, *OURS)
# Each turn has its own processes, one turn after the other: ours runs between two turns of PEER, the fastest of torch's
# on two H200s.
PEER = "torch_compiled_selective"
TURNS = (PEER, "ours", PEER, "ours_fully_shard", "torch_compiled", "torch_eager")
MEASURES = ("time", "budget", "fusion", "check", "descent")
WHOLE_STEP = {"measures": "time", "phase": TRAIN_STEP, "clock": "host"}
# In the order in which they are added; the first has none, the last is ours as it is timed.
FUSIONS = ("none", "attention", "rms_norm", "rotary", "swiglu", "loss", "kept_products")
# Columns that count layers by what they keep, one of `formulas.fused_step.LEVELS`.
KEEPING_COLUMNS = {
    "input": "layers_that_keep_input",
    "attention": "layers_that_keep_attention",
    "qkv": "layers_that_keep_qkv",
    "gate_up": "layers_that_keep",
}
CHECKED = ("ours", "bf16_eager")


@dataclass(frozen=True)
class Cell:
    """One model and context, a sequence a rank; the implementations are its rows.

    impls: those that take turns, joined by +; one that is named twice has two turns. repeat: the number of a cell
    that measures the same again.
    """

    size: str = axis("8B", allowed=SIZES)
    context_length: int = axis(32_768, minimum=2)
    world_size: int = axis(2, minimum=2)
    impls: str = axis("+".join(TURNS))
    repeat: int = axis(1, minimum=1)

    def __post_init__(self) -> None:
        """Raise UserError, one line, for an unknown implementation."""
        if not {*self.turns} <= {*IMPLS}:
            raise UserError(f"impls is '{self.impls}', allowed are, joined by +, {', '.join(IMPLS)}")

    @property
    def turns(self) -> list[str]:
        """The implementation of each turn."""
        return self.impls.split("+")

    @property
    def gpus(self) -> int:
        """The GPUs that the cell uses if there are any: one per rank."""
        return self.world_size

    def row_keys(self) -> list[dict[str, str]]:
        """Return the keys of the rows of a cell that could not be measured: each implementation's whole step."""
        return [{"impl": impl, **WHOLE_STEP} for impl in dict.fromkeys(self.turns)]


@dataclass(frozen=True)
class Settings:
    """Shared by all cells.

    checked_*: the layers and the context with which loss and gradients are compared with fp32; an error of the
    gradients may be `error_factor` times that of the plain model in bf16, the loss off by `loss_tolerance` of it.
    descent_*: the steps and the context over which the loss must fall. free_share: the share of the GPU's memory that
    stays free when it is divided among the layers. loss_chunk: tokens whose loss is computed at once.
    """

    vocab_size: int = axis(151_936, minimum=2)
    loss_chunk: int = axis(4096, minimum=1)
    learning_rate: float = axis(1e-4, minimum=0)
    steps: int = axis(3, minimum=1)
    fusion_steps: int = axis(1, minimum=1)
    checked_layers: int = axis(2, minimum=1)
    checked_context: int = axis(4096, minimum=2)
    error_factor: float = axis(1.5, minimum=1)
    loss_tolerance: float = axis(0.002, minimum=0)
    descent_steps: int = axis(20, minimum=2)
    descent_context: int = axis(2048, minimum=2)
    free_share: float = axis(0.03, minimum=0)
    unstable_rel_error: float = axis(0.05, minimum=0)
    timeout_s: float = axis(600.0, minimum=1)
    threads: int = axis(0, minimum=0)
