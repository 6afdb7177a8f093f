import pytest

pytestmark = pytest.mark.workflow


def edited(project, path, old, new):
    file = project.root / path
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))
    return project.planned("reports/writeup.md")


def test_a_comment_in_the_model_measures_nothing(project):
    path, code = "src/pipeline/model/transformer.py", "ROPE_THETA = 10_000.0"
    assert edited(project, path, code, f"{code}  # as in the paper") == {}


def test_arithmetic_in_the_model_measures_every_cell_that_runs_it(project):
    path, code = "src/pipeline/model/transformer.py", "ROPE_THETA = 10_000.0"
    planned = edited(project, path, code, "ROPE_THETA = 20_000.0")
    assert planned["measure_timing"] == 2
    assert {"tabulate_timing", "tabulate_cells", "section_timing", "writeup"} <= set(planned)


def test_a_figure_is_drawn_again_without_measuring(project):
    path = "src/pipeline/report/figures.py"
    planned = edited(project, path, "import matplotlib as mpl\n", "import matplotlib as mpl\n\nUNUSED = 1\n")
    assert "section_timing" in planned
    assert "writeup" in planned
    assert "measure_timing" not in planned


def test_the_prose_is_rendered_again_without_measuring(project):
    planned = edited(
        project, "src/pipeline/stages/timing/report/section.py", 'TITLE, EXERCISE = "', 'TITLE, EXERCISE = "So: '
    )
    assert "section_timing" in planned
    assert "measure_timing" not in planned


def test_a_changed_setting_measures_again(project):
    settings = "overrides={timing: {settings: {batch_size: 2}}}"
    assert project.planned("reports/writeup.md", "--config", settings)["measure_timing"] == 2


def test_a_new_cell_leaves_the_others_alone(project):
    grid = "overrides={timing: {grids: [{size: [tiny], context_length: [16, 17], precision: [fp32, bf16]}]}}"
    assert project.planned("reports/writeup.md", "--config", grid)["measure_timing"] == 2


def test_another_version_of_torch_measures_again(project):
    build = project.root / "src/pipeline/instruments/machine/identity.py"
    build.write_text(build.read_text().replace('_installed_version("torch")', '"99.0"'))
    assert project.planned("reports/writeup.md")["measure_timing"] == 2
