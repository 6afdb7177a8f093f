import torch
from torch.nn import functional

from pipeline.model.transformer import TransformerLM
from tools.by_hand import model


def test_with_equal_weights_loss_and_gradients_are_those_of_the_pipelines_model():
    torch.manual_seed(1)
    theirs = TransformerLM(vocab_size=model.VOCABULARY, context_length=16, **model.SIZES["tiny"])
    ours = model.Transformer(["eager"], 16, **model.SIZES["tiny"])
    both = list(zip(ours.parameters(), theirs.parameters(), strict=True))
    with torch.no_grad():
        for own, other in both:
            own.copy_(other)
    tokens, targets = torch.randint(model.VOCABULARY, (2, 2, 16))
    losses = [functional.cross_entropy(each(tokens).flatten(0, 1), targets.flatten()) for each in (ours, theirs)]
    torch.testing.assert_close(*losses)
    for loss in losses:
        loss.backward()
    for own, other in both:
        torch.testing.assert_close(own.grad, other.grad)
