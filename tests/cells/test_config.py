import os
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.cells.config import check_something_to_write, config_words, load_plan, remarks
from pipeline.cells.yaml_files import read_yaml, yaml_value
from pipeline.registry import stages

from ..complaints import complaint

ROOT = Path(__file__).parents[2]
SCALES, SCHEMAS = ROOT / "config/scales", ROOT / "workflow/schemas"
OUTSIDE = ROOT / "tests/subjects/outside"
MINE = {"attention": {"mine": f"{OUTSIDE}/kernels/attention.py:Right"}}
NUMBERS = {"d_model": 64, "d_ff": 96, "num_layers": 2, "num_heads": 2}


def plan(has_gpu=False, scales=SCALES, **changes):
    config = {"scale": "smoke", "measure": True, "overrides": {}, **changes}
    return load_plan(config, scales, SCHEMAS, stages(), has_gpu)


def timing(**words):
    return {"overrides": {"timing": words}}


def test_scale_auto_depends_on_gpus_and_every_scale_has_cells():
    assert (plan(True, scale="auto").scale, plan(False, scale="auto").scale) == ("paper", "laptop")
    assert all(plan(scale=path.stem).stages["levers"].cells for path in SCALES.glob("*.yaml"))
    # Without a GPU, a scale that has a variant for CPUs means that variant.
    assert (plan(True, scale="quick").scale, plan(False, scale="quick").scale) == ("quick", "quick-cpu")


@pytest.mark.parametrize(("has_gpu", "precision"), [(True, "bf16"), (False, "fp32")])
def test_levers_train_in_bf16_on_gpus_and_in_fp32_on_cpus(has_gpu, precision):
    for scale in ("auto", "quick", "seeds" if has_gpu else "smoke"):
        assert {cell.precision for cell in plan(has_gpu, scale=scale).stages["levers"].cells} == {precision}


def test_config_words_request_the_same_cells():
    config = {"scale": "auto", "only": "timing", "sizes": {"mine": NUMBERS}, "subjects": {}}
    config |= timing(grids=[{"size": ["mine"]}])
    requested = plan(**config)
    words = config_words(config, requested)
    assert [word.partition("=")[0] for word in words] == ["scale", "only", "sizes", "overrides"]
    again = {key: yaml_value(value, key) for key, _, value in (word.partition("=") for word in words)}
    assert plan(has_gpu=True, **again) == requested
    # Snakemake passes numbers inside a --config value as text.
    as_text = {**config, "sizes": {"mine": {key: str(number) for key, number in NUMBERS.items()}}}
    assert config_words(as_text, plan(**as_text)) == words


def test_an_override_replaces_grids_and_merges_settings():
    changed = plan(**timing(grids=[{"size": ["micro"]}], settings={"vocab_size": 2})).stages["timing"]
    assert [cell.size for cell in changed.cells] == ["micro"]
    assert changed.settings == replace(plan().stages["timing"].settings, vocab_size=2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scale": "papre"}, "config: scale must be one of auto, laptop, paper, quick, quick-cpu, seeds, smoke"),
        ({"sclae": "paper"}, "config: unknown key 'sclae': must be one of scale, measure, overrides"),
        ({"measure": "perhaps"}, 'config: measure must be true or false, got "perhaps"'),
        ({"overrides": {"timings": {}}}, "overrides: unknown stage 'timings': must be one of"),
        (timing(grids=[{"size": []}]), "config: overrides.timing.grids.0.size must be a value, or a list of one"),
        (timing(grids=[{"size": ["huge"]}]), "overrides: timing grid: size must be one of tiny, nano, micro, small"),
        (timing(settings={"steps": -3}), "overrides: timing settings: steps must be at least 5, got -3"),
        (timing(setting={}), "config: unknown key 'setting' under overrides.timing: must be one of settings, grids"),
        (
            {"overrides": {"collectives": {"settings": {"min_bytes": 40_000_000}}}},
            f"{SCALES / 'smoke.yaml'} with overrides: collectives settings: min_bytes must be at most max_bytes (",
        ),
        ({"subjects": 3}, "config: subjects must be a mapping of kinds (attention, "),
        ({"subjects": {"attention": {"mine": 3}}}, "config: subjects.attention.mine"),
        ({"subjects": {"attention": {"tiled": "a:b"}}}, "subjects: attention.tiled: the pipeline's own has this name"),
        ({"only": ["timign"]}, "config: only: unknown stage 'timign': must be one of ceilings, "),
        ({"only": 3}, "config: only must be a stage or a list of stages; empty for all, got 3"),
    ],
)
def test_a_config_error_is_one_line_that_says_what_is_allowed(changes, message):
    assert complaint(plan, **changes).startswith(message)


def test_a_list_that_the_shell_cut_in_two_is_to_be_quoted():
    assert complaint(plan, only="[timing,").endswith("; quote the option: 'only=[timing,flash]'")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("stages: {timing: [", "not valid YAML: line"),
        ("stages:\n\ttiming: {}", "not valid YAML: line 2, column 1"),
        ("stages: {timing: {grids: [{size: []}]}}", "stages.timing.grids.0.size"),
        ("stages: {timing: {grid: []}}", "unknown key 'grid' under stages.timing: must be one of settings, grids"),
        ("stage: {}", "unknown key 'stage': must be one of stages"),
        ("", "it must be an object, got null"),
        ("stages:\n  timing: {}\n# \a", "not valid YAML: line 3: character #x0007"),
        ("stages: 2026-99-99", "not valid YAML: month must be in 1..12"),
        ("stages: " + "[" * 1000, "not valid YAML: its keys and lists are nested too deeply"),
        ("stages: {a: {b: [{c: 1, c: 2}]}}", "not valid YAML: line 1, column 25: 'c' is given twice, first in line 1"),
        (
            "stages: [timing\nscale: auto\n",
            "not valid YAML: line 2, column 6: expected ',' or ']', but got ':', "
            "while parsing a flow sequence that begins in line 1",
        ),
        ("stages: &a {timing: *a}", "not valid YAML: line 1, column 9: "),
        (b"scale: auto\n# caf\xe9\n", "line 2 is not UTF-8: byte 0xe9"),
        ("stages: {timming: {grids: []}}", "unknown stage 'timming': must be one of"),
        (
            "stages: {timing: {settings: {steps: 99}, grids: []}}",
            "timing settings: steps must be at most max_steps (50)",
        ),
    ],
)
def test_a_scale_file_error_names_file_and_place_even_with_overrides(tmp_path, text, message):
    path = tmp_path / "mine.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    found = complaint(plan, scales=tmp_path, scale="mine", overrides={"flash": {"grids": [{}]}})
    assert found.startswith(f"{path}: {message}")


@pytest.mark.parametrize(
    ("put", "why"),
    [
        (os.mkfifo, "it must be a plain file"),
        (lambda path: path.symlink_to("/dev/zero"), "it must be a plain file"),
        (lambda path: path.write_bytes(b"#" * (2**20 + 1)), "it is larger than 1 MiB"),
        (lambda path: None, "No such file or directory"),
    ],
    ids=["pipe", "device", "large", "missing"],
)
def test_pipes_devices_and_large_or_missing_files_are_refused(tmp_path, put, why):
    put(tmp_path / "mine.yaml")
    assert complaint(read_yaml, tmp_path / "mine.yaml") == f"cannot read {tmp_path}/mine.yaml: {why}"


def test_a_run_with_nothing_to_write_up_says_what_to_do(tmp_path):
    check_something_to_write(plan(), tmp_path)
    (tmp_path / "mine.yaml").write_text("stages: {}")
    empty = complaint(check_something_to_write, plan(scales=tmp_path, scale="mine"), tmp_path)
    assert empty.startswith("scale 'mine' with its overrides has no cells: give a stage `grids`")
    unmeasured = complaint(check_something_to_write, plan(measure=False), tmp_path)
    assert "holds no records to render: measure with" in unmeasured


def test_subjects_reach_the_stage_of_their_kind_and_config_overrides_scale(tmp_path):
    planned = plan(subjects=MINE)
    assert [subject.name for subject in planned.stages["flash"].subjects] == ["mine"]
    assert not any(stage.subjects for name, stage in planned.stages.items() if name != "flash")
    adapters = plan(subjects=str(OUTSIDE / "adapters.py"))
    assert [subject.name for subject in adapters.stages["ddp"].subjects] == ["my_ddp_individual", "my_ddp_bucketed"]
    text, place = (SCALES / "smoke.yaml").read_text(), MINE["attention"]["mine"]
    (tmp_path / "smoke.yaml").write_text(f"{text}\nsubjects: {{attention: {{mine: '{place}'}}}}\n")
    for subjects, name in (({}, "mine"), ({"attention": {"other": place}}, "other")):
        planned = plan(scales=tmp_path, subjects=subjects)
        assert [subject.name for subject in planned.stages["flash"].subjects] == [name]


@pytest.mark.parametrize(
    ("changes", "remark"),
    [
        ({"overrides": {"flash": {"settings": {"max_samples": 50}}}}, "overrides: flash is not measured: scale"),
        ({"overrides": {"flash": {"settings": {"max_samples": 50}, "grids": [{}]}}}, None),
        ({"overrides": {"flash": {"grids": []}}}, None),  # intended: the stage is left out
        ({"overrides": {"flash": {"grids": [{}]}}, "subjects": MINE}, None),
        ({"subjects": MINE}, "subjects: attention.mine is not measured: this run has no cell that measures its kind"),
        ({"measure": False, "subjects": MINE}, None),
        ({"only": ["timing"]}, "only: pages show only these stages"),
    ],
)
def test_requests_without_effect_are_reported(tmp_path, changes, remark):
    (tmp_path / "mine.yaml").write_text("stages: {timing: {grids: [{}]}}")
    requested = plan(scales=tmp_path, scale="mine", **changes)
    lines = remarks({"overrides": {}, **changes}, requested)
    assert [line[: len(remark or "")] for line in lines] == ([remark] if remark else [])


def test_user_sizes_in_grids_become_names_that_spell_out_their_numbers():
    grids = {"timing": {"grids": [{"size": ["tiny", "mine"]}]}, "ddp": {"grids": [{"size": "mine"}]}}
    planned = plan(sizes={"mine": NUMBERS}, overrides=grids)
    name = "mine-d64-f96-l2-h2-kv2-v0"
    assert [cell.size for cell in planned.stages["timing"].cells] == ["tiny", name]
    assert [cell.size for cell in planned.stages["ddp"].cells] == [name]
    assert complaint(plan, sizes={"mine": NUMBERS}, **timing(grids=[{"size": ["other"]}])).endswith("got 'other'")
