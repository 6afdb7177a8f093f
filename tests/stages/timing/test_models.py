import json

import pytest
from jsonschema import validate

from pipeline.report.summary import SCHEMA
from pipeline.stages.timing.report.models import models
from pipeline.stages.timing.report.section import build

from .test_tuned import LEVERS


@pytest.mark.parametrize("name", ["h200", "laptop", "smoke"])
def test_models_are_as_the_summary_declares_them(make_rows, name):
    schema = json.loads(SCHEMA.read_text())
    found = build(make_rows(name)).models
    assert found
    validate(found, {**schema["properties"]["models"], "$defs": schema["$defs"]})


def test_a_model_has_the_figures_of_its_eager_step_and_its_gains_over_fp32_with_and_without_tf32(make_rows):
    rows = make_rows("h200")
    (model,) = [model for model in build(rows).models if model["size"] == "large"]
    steps = rows[(rows["size"] == "large") & (rows["phase"] == "train_step") & (rows["clock"] == "host")]
    steps = steps[(steps["mode"] == "eager") & (steps["warmup_steps"] == 5)].set_index(["precision", "context_length"])
    own, fp32, tf32 = (steps.loc[(precision, 1024)] for precision in ("bf16", "fp32", "tf32"))
    assert (model["precision"], model["context_length"], model["batch_size"]) == ("bf16", 1024, 4)
    assert model["median_ms"] == pytest.approx(own["median_ms"])
    assert model["tokens_per_s"] == pytest.approx(own["tokens_per_s"])
    assert model["times_fp32"] == pytest.approx(fp32["median_ms"] / own["median_ms"])
    assert model["times_tf32"] == pytest.approx(tf32["median_ms"] / own["median_ms"])


def test_they_are_the_same_without_the_rest_of_the_section(make_rows):
    beside = {"levers": LEVERS}
    found = models(make_rows("h200"), beside)
    assert found == build(make_rows("h200"), beside).models
    assert any(model["tuned_tokens_per_s"] for model in found)


def test_without_an_eager_step_there_are_none(make_rows):
    rows = make_rows("h200")
    assert models(rows[rows["mode"] == "compiled"], {"levers": LEVERS}) == []
