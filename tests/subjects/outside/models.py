"""Language models as a user might bring them: right and subtly wrong."""

from torch import nn


class Decoder(nn.Module):
    """PyTorch's own layers with learned positions; it takes the course's arguments."""

    is_causal, has_positions = True, True

    def __init__(self, vocab_size, context_length, d_model, num_layers, num_heads, d_ff, rope_theta):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab_size, d_model), nn.Embedding(context_length, d_model)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(d_model, num_heads, d_ff, 0.0, batch_first=True) for _ in range(num_layers)
        )
        self.head = nn.Linear(d_model, vocab_size)

    def forward(self, tokens):
        length = tokens.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length) if self.is_causal else None
        x = self.tokens(tokens) + (self.positions.weight[:length] if self.has_positions else 0)
        for layer in self.layers:
            x = layer(x, src_mask=mask)
        return self.head(x)


class SeesTheFuture(Decoder):
    is_causal = False


class ForgetsPositions(Decoder):
    """Has a parameter that nothing reads."""

    has_positions = False


class FlatLogits(Decoder):
    def forward(self, tokens):
        return super().forward(tokens).flatten(0, 1)
