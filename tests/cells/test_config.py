from pathlib import Path

import pytest

from pipeline.cells.config import load_plan, read_scale
from pipeline.errors import UserError

ROOT = Path(__file__).parents[2]
SCALES, SCHEMAS = ROOT / "config/scales", ROOT / "workflow/schemas"


def plan(has_gpu=False, **changes):
    config = {"scale": "smoke", "measure": True, "overrides": {}, **changes}
    return load_plan(config, SCALES, SCHEMAS, has_gpu)


@pytest.mark.parametrize(("has_gpu", "scale"), [(True, "paper"), (False, "laptop")])
def test_the_automatic_scale_follows_the_machine(has_gpu, scale):
    assert plan(has_gpu, scale="auto").scale == scale


@pytest.mark.parametrize("scale", sorted(path.stem for path in SCALES.glob("*.yaml")))
def test_every_scale_gives_cells(scale):
    assert plan(scale=scale).stages["timing"].cells


def test_the_paper_scale_holds_the_whole_matrix():
    cells = plan(scale="paper").stages["timing"].cells
    main = {
        (cell.size, cell.context_length, cell.precision)
        for cell in cells
        if cell.mode == "eager" and cell.warmup_steps == 5
    }
    assert len(main) == 6 * 4 * 3
    assert {cell.warmup_steps for cell in cells} == {0, 1, 2, 5}
    assert {cell.precision for cell in cells if cell.mode == "compiled"} == {"fp32", "bf16"}


def test_measure_can_be_switched_off_in_yaml_and_on_the_command_line():
    assert plan(measure=False).measure is plan(measure="false").measure is False
    assert plan(measure="true").measure is True


def test_an_override_replaces_grids_and_merges_settings():
    changed = plan(overrides={"timing": {"grids": [{"size": ["micro"]}], "settings": {"batch_size": 2}}})
    timing = changed.stages["timing"]
    assert [cell.size for cell in timing.cells] == ["micro"]
    assert timing.settings.batch_size == 2
    assert timing.settings.max_steps == plan().stages["timing"].settings.max_steps


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"scale": "papre"}, "config: scale is 'papre', allowed are auto, laptop, paper, smoke"),
        ({"sclae": "paper"}, "config: unknown key 'sclae'; known are scale, measure, overrides"),
        ({"measure": "perhaps"}, "config: measure is 'perhaps', allowed is boolean"),
        ({"overrides": {"timings": {}}}, "unknown stage 'timings'; known are"),
        (
            {"overrides": {"timing": {"grids": [{"size": ["huge"]}]}}},
            "timing grid: size is 'huge', allowed are tiny, nano, micro, small",
        ),
        (
            {"overrides": {"timing": {"settings": {"steps": -3}}}},
            "timing settings: steps is -3, allowed is 10 or more",
        ),
        (
            {"overrides": {"timing": {"setting": {"steps": 10}}}},
            "config: unknown key 'setting' under overrides.timing; known are settings, grids",
        ),
    ],
)
def test_bad_configuration_is_one_line_that_says_what_is_allowed(changes, complaint):
    with pytest.raises(UserError) as raised:
        plan(**changes)
    assert str(raised.value).startswith(complaint)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("stages: {timing: [", "no valid YAML: line"),
        ("stages:\n\ttiming: {}", "no valid YAML: line 2, column 1"),
        ("stages: {timing: {grids: [{size: []}]}}", "stages.timing.grids.0.size"),
        ("stages: {timing: {grid: []}}", "unknown key 'grid' under stages.timing; known are settings, grids"),
        ("stage: {}", "unknown key 'stage'; known are stages"),
        ("", "the whole is None, allowed is object"),
    ],
)
def test_a_bad_scale_file_is_named_with_the_place(tmp_path, text, complaint):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(UserError) as raised:
        read_scale(path, SCHEMAS / "scale.schema.yaml")
    assert str(path) in str(raised.value)
    assert complaint in str(raised.value)
    assert "\n" not in str(raised.value)
