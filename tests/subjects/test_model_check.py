import pytest

from pipeline.subjects.checking import Wrong
from pipeline.subjects.model_check import check_model
from pipeline.subjects.naming import Subject

from .outside_files import HERE, OUTSIDE


def check(place):
    return check_model(HERE, Subject("model", "mine", place))


@pytest.mark.parametrize("place", [f"{OUTSIDE}/models.py:Decoder", "pipeline.model.transformer:TransformerLM"])
def test_a_causal_model_that_learns_passes(place):
    assert check(place).status == "ok"


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("SeesTheFuture", r"logits of the first 12 tokens change by .* with later tokens"),
        ("ForgetsPositions", "no gradient reaches positions.weight"),
        ("FlatLogits", r"logits have shape \(48, 50\), must have \(batch, length, vocabulary\), \(2, 24, 50\)"),
    ],
)
def test_a_broken_language_model_is_wrong(model, said):
    with pytest.raises(Wrong, match=said):
        check(f"{OUTSIDE}/models.py:{model}")
