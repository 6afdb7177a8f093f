"""The model sizes."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ModelSize:
    """The widths and counts of a transformer."""

    d_model: int
    d_ff: int
    num_layers: int
    num_heads: int

    @property
    def head_dim(self) -> int:
        """The width of one attention head: d_model / num_heads."""
        return self.d_model // self.num_heads


SIZES: dict[str, ModelSize] = {
    # for a CPU
    "tiny": ModelSize(d_model=64, d_ff=256, num_layers=2, num_heads=2),
    "nano": ModelSize(d_model=128, d_ff=512, num_layers=4, num_heads=4),
    "micro": ModelSize(d_model=256, d_ff=1024, num_layers=4, num_heads=4),
    # for a GPU
    "small": ModelSize(d_model=768, d_ff=3072, num_layers=12, num_heads=12),
    "medium": ModelSize(d_model=1024, d_ff=4096, num_layers=24, num_heads=16),
    "large": ModelSize(d_model=1280, d_ff=5120, num_layers=36, num_heads=20),
    "xl": ModelSize(d_model=1600, d_ff=6400, num_layers=48, num_heads=25),
    # The assignment's xl since 2026, its 2.7B before; its former xl is the one above.
    # Named after a model with two feed-forward matrices per layer; with SwiGLU's three it has 3.4e9 parameters.
    "2.7B": ModelSize(d_model=2560, d_ff=10240, num_layers=32, num_heads=32),
    # Its training state in fp32, 205 GB, fits no single GPU.
    "10B": ModelSize(d_model=4608, d_ff=12288, num_layers=50, num_heads=36),
    # Wide and shallow: few, large matrix products.
    "2.35B": ModelSize(d_model=3200, d_ff=25600, num_layers=8, num_heads=4),
}
