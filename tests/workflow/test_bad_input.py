import json

import pytest

pytestmark = pytest.mark.workflow


def last_line(output):
    return output.strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ("scale=papre", "snakemake: config: scale is 'papre', allowed are auto, laptop, paper, smoke, two_cells"),
        ("overrides={timing: {grids: [{size: [huge]}]}}", "snakemake: timing grid: size is 'huge', allowed are tiny"),
        ("overrides={timing: {settings: {steps: -3}}}", "snakemake: timing settings: steps is -3, allowed is 10"),
    ],
)
def test_a_bad_value_is_one_line_and_an_exit_code(project, config, complaint):
    code, output = project.snakemake("--config", config)
    assert code == 1
    assert last_line(output).startswith(complaint)
    assert "Traceback" not in output


def test_a_typo_in_the_configuration_is_one_line_with_its_place(project):
    (project.root / "config/config.yaml").write_text("scale: [auto\n")
    code, output = project.snakemake()
    assert code == 1
    assert "no valid YAML: line 2" in last_line(output)


def test_records_of_another_machine_are_kept_and_can_be_rendered(project):
    record_path = project.records()[0]
    foreign = json.loads(record_path.read_text())
    foreign["machine"]["kind"] = "NVIDIA Imaginary"
    foreign["code"]["digest"] = "former"
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
    assert "the code that measures timing has changed" in text


def test_another_folder_takes_another_machines_measurements(project):
    code, output = project.snakemake("--directory", "runs/other", "results/timing/fp32.csv")
    assert code == 0, output
    assert (project.root / "runs/other/results/timing/fp32.csv").is_file()
