"""The models that the questions are about: feed-forward blocks alone, or a whole transformer."""

from dataclasses import asdict, dataclass

from pipeline.formulas.activations import Workload, bytes_by_part
from pipeline.formulas.mesh import Block
from pipeline.formulas.parameters import parameter_count
from pipeline.formulas.sizes import SIZES, ModelSize, Sizes
from pipeline.formulas.units import BF16_BYTES


@dataclass(frozen=True)
class FeedForwardModel:
    """Blocks of two linear layers, D to F and F back to D, without activation function, attention or embedding."""

    d_model: int
    d_ff: int
    num_blocks: int

    @property
    def numbers(self) -> dict[str, int]:
        """Return d_model, d_ff and num_blocks."""
        return asdict(self)

    @property
    def block(self) -> Block:
        """Return one of its blocks."""
        return Block(self.d_model, self.d_ff)

    @property
    def parameters(self) -> int:
        """Count the parameters: 2·D·F·L."""
        return self.num_blocks * self.block.weights

    def activation_bytes(self, batch_size: int, seq_len: int) -> int:
        """Count the bytes saved for the backward pass in bf16: 2·L·(D + F)·T.

        These are the inputs of the linear layers, which the weight gradients need: per token D elements for a block's
        first layer, F for the second. There is no norm, activation function or loss, unlike in `formulas.activations`.
        """
        return BF16_BYTES * self.num_blocks * (self.d_model + self.d_ff) * batch_size * seq_len


@dataclass(frozen=True)
class Transformer:
    """The transformer that other stages measure (`pipeline.model`), in fp32, with SwiGLU and eager attention."""

    size: ModelSize
    vocab_size: int

    @property
    def numbers(self) -> dict[str, int]:
        """Return d_model, d_ff, num_heads, and the number of layers as num_blocks."""
        widths = {name: getattr(self.size, name) for name in ("d_model", "d_ff", "num_heads")}
        return {"num_blocks": self.size.num_layers, **widths}

    @property
    def block(self) -> Block:
        """Return the SwiGLU of one layer."""
        return Block(self.size.d_model, self.size.d_ff, matrices=3)

    @property
    def parameters(self) -> int:
        """Count the parameters, including embedding and head."""
        return parameter_count(self.size, self.vocab_size)

    def activation_bytes(self, batch_size: int, seq_len: int) -> int:
        """Count the bytes saved for the backward pass in fp32, including score matrices."""
        return sum(bytes_by_part(self.workload(batch_size, seq_len)).values())

    def workload(self, batch_size: int, seq_len: int, attention: str = "eager") -> Workload:
        """Return the workload of a training step in fp32 on a GPU."""
        return Workload(self.size, self.vocab_size, batch_size, seq_len, attention=attention)


Model = FeedForwardModel | Transformer

# The model of the assignment's problem communication_accounting.
XXL = FeedForwardModel(d_model=16384, d_ff=53248, num_blocks=126)

# The assignment's problem pytorch_attention: no projections, no feed-forward network.
ONE_HEAD = ModelSize(d_model=64, d_ff=0, num_layers=1, num_heads=1)

NAMES = Sizes({"XXL": XXL, "one_head": ONE_HEAD, **SIZES})


def model_named(name: str, vocab_size: int) -> Model:
    """Return XXL, or the transformer of a size; raises KeyError for a name not in NAMES."""
    return XXL if name == "XXL" else Transformer(NAMES[name], vocab_size)


def lacking(question: str, model: Model) -> str:
    """Name what the model lacks for the question; empty if nothing."""
    if question in ("activations", "attention") and not isinstance(model, Transformer):
        return "attention"
    return "feed-forward layers" if question in ("mesh", "parallel") and model.block.d_ff == 0 else ""
