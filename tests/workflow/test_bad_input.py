import json

import pytest

pytestmark = pytest.mark.workflow


def last_line(output):
    return output.strip().splitlines()[-1]


# Every bad value takes the way of these; which there are is tested where they are found.


def test_a_bad_value_is_one_line_and_an_exit_code(project):
    code, output = project.snakemake("--config", "scale=papre")
    assert code == 1
    assert last_line(output).startswith("snakemake: config: scale must be one of auto, laptop, paper, smoke, two_cells")
    assert "Traceback" not in output


def test_a_typo_in_the_configuration_is_one_line_with_its_place(project):
    (project.root / "config/config.yaml").write_text("scale: [auto\n")
    code, output = project.snakemake()
    assert code == 1
    assert "no valid YAML: line 2" in last_line(output)


def test_a_mistyped_target_is_one_line_that_names_the_allowed(project):
    code, output = project.snakemake("--dry-run", "results/timing/fp64.csv")
    assert code == 1
    using, told = output.splitlines()
    assert using.startswith("Using workflow specific profile")
    allowed = "targets in results/timing/ are bf16.csv, cells.csv, cells/, fp32.csv, tf32.csv"
    assert told == f"snakemake: no target 'results/timing/fp64.csv' at scale two_cells: {allowed}"


def test_a_record_of_a_cell_that_may_not_be_is_one_line(project):
    target = str(project.records()[0].relative_to(project.root)).replace("size=tiny", "size=huge")
    code, output = project.snakemake("--dry-run", target)
    assert code == 1
    assert last_line(output).startswith("snakemake: timing: size must be one of tiny, nano")
    assert "Traceback" not in output


def test_a_profile_without_its_plugin_is_one_line_with_the_remedy(project):
    profile = project.root / "workflow/profiles/slurm/config.yaml"
    profile.write_text(profile.read_text().replace('executor("slurm")', 'executor("flux")'))
    code, output = project.snakemake("--workflow-profile", "workflow/profiles/slurm", "--dry-run")
    assert code == 1
    using, told = output.splitlines()
    assert using.startswith("Using workflow specific profile")
    assert told.endswith("needs the executor 'flux': pip install snakemake-executor-plugin-flux")


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        (["overrides={timing: {grids: []}}"], "scale 'two_cells' with its overrides asks for no cell"),
        (["measure=false", "--directory", "runs/empty"], "runs/empty/results/ holds no records to render"),
    ],
)
def test_a_run_that_would_write_up_nothing_leaves_what_is_there(project, config, complaint):
    before = (project.root / "reports/writeup.md").read_text()
    code, output = project.snakemake("--config", *config)
    assert code == 1
    assert complaint in last_line(output)
    assert (project.root / "reports/writeup.md").read_text() == before
    assert not (project.root / "runs/empty/reports").exists()


def test_reports_that_cannot_be_written_stop_the_run_before_it_measures(project):
    (project.root / "runs/other").mkdir(parents=True)
    (project.root / "runs/other/reports").write_text("a file in its place")
    code, output = project.snakemake("--directory", "runs/other")
    assert code == 1
    assert "reports/ cannot be written" in last_line(output)
    assert not (project.root / "runs/other/results").exists()


def test_records_of_another_machine_are_kept_and_can_be_rendered(project):
    record_path = project.records()[0]
    foreign = json.loads(record_path.read_text())
    foreign["machine"]["kind"] = "NVIDIA Imaginary"
    foreign["code"] |= {"digest": "former", "modules": foreign["code"]["modules"] | {"pipeline.model.step": "former"}}
    record_path.write_text(json.dumps(foreign))

    code, output = project.snakemake()
    assert code == 1
    assert "records of another machine (NVIDIA Imaginary;" in last_line(output)
    assert json.loads(record_path.read_text()) == foreign

    code, output = project.snakemake("--config", "measure=false")
    assert code == 0, output
    assert json.loads(record_path.read_text()) == foreign
    text = (project.root / "reports/writeup.md").read_text()
    assert "NVIDIA Imaginary" in text
    assert "at scale" not in text  # whatever asked for these cells
    assert "the code that measured 1 of the 2 cells of timing (precision=bf16 " in text


@pytest.mark.usefixtures("without_worker")
def test_another_folder_takes_another_machines_measurements(project):
    table, formulas = "results/accounting/fsdp.csv", "overrides={accounting: {grids: [{question: [fsdp]}]}}"
    code, output = project.snakemake("--directory", "runs/other", table, "--config", formulas)
    assert code == 0, output
    assert (project.root / "runs/other" / table).is_file()


def add_folder(stages):
    (stages / "warmth").mkdir()
    (stages / "warmth/__init__.py").write_text("")


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (add_folder, "stages/warmth/ is not registered: add 'warmth' to NAMES in"),
        (lambda stages: (stages / "timing/report/section.py").unlink(), "stages/timing/ has no report/section.py"),
    ],
)
def test_a_stage_that_is_not_whole_is_one_line_before_anything_runs(project, damage, complaint):
    damage(project.root / "src/pipeline/stages")
    code, output = project.snakemake("--dry-run")
    assert code == 1
    assert complaint in last_line(output)
    assert "Traceback" not in output


def test_a_key_given_twice_is_named_in_whichever_file_it_is(project):
    (project.root / "mine.yaml").write_text("measure: true\noverrides: {}\nmeasure: false\n")
    code, output = project.snakemake("--configfile", "mine.yaml")
    assert code == 1
    assert last_line(output).endswith(
        "mine.yaml: no valid YAML: line 3, column 1: 'measure' is given twice, first in line 1"
    )


def test_settings_of_a_stage_without_cells_are_told_of(project):
    code, output = project.snakemake("--dry-run", "--config", "overrides={flash: {settings: {max_samples: 50}}}")
    assert code == 0, output
    assert "overrides: flash is not measured, for scale 'two_cells' has no cell of it: give it `grids`" in output
