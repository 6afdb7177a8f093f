"""The assignment's toy model: two linear layers with a ReLU and a layer normalisation between them."""

import torch
from torch import nn

HIDDEN = 10


class ToyModel(nn.Module):
    """Map (batch, in_features) to logits (batch, out_features)."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(in_features, HIDDEN, bias=False)
        self.ln = nn.LayerNorm(HIDDEN)
        self.fc2 = nn.Linear(HIDDEN, out_features, bias=False)
        self.relu = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        return self.fc2(self.ln(self.relu(self.fc1(x))))
