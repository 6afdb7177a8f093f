import json

import pytest

pytestmark = pytest.mark.workflow


def test_a_mistyped_target_gives_one_line_with_the_allowed_names(project):
    _using, message = project.snakemake("--dry-run", "results/timing/fp64.csv", code=1).splitlines()
    allowed = "targets in results/timing/ are bf16.csv, cells.csv, cells/, fp32.csv, tf32.csv"
    assert message == f"snakemake: no target 'results/timing/fp64.csv' at scale few: {allowed}"


def test_a_profile_without_its_plugin_gives_one_line_with_the_fix(project):
    project.edit("workflow/profiles/slurm/config.yaml", 'executor("slurm")', 'executor("flux")')
    output = project.snakemake("--workflow-profile", "workflow/profiles/slurm", "--dry-run", code=1)
    _using, message = output.splitlines()
    assert message.endswith("needs the executor 'flux': pip install snakemake-executor-plugin-flux")


NOTHING = {stage: {"grids": []} for stage in ("timing", "flash", "accounting")}


@pytest.mark.parametrize(
    ("damage", "words", "complaint"),
    [
        (lambda root: (root / "config/config.yaml").write_text("scale: [auto\n"), {}, "not valid YAML: line 2"),
        (None, {"configfiles": True}, "mine.yaml: not valid YAML: line 2, column 1: 'measure' is given twice"),
        # Every bad value is reported like this one; each kind is tested where it is detected.
        (None, {"scale": "papre"}, "snakemake: config: scale must be one of auto, few, laptop, paper, quick, "),
        (None, {"overrides": NOTHING}, "scale 'few' with its overrides has no cells"),
        (None, {"measure": False, "folder": "runs"}, "runs/results/ holds no records to render"),
        (lambda root: (root / "runs/reports").write_text("a file"), {"folder": "runs"}, "reports/ cannot be written"),
    ],
)
def test_a_run_that_cannot_be_done_gives_one_line_and_changes_nothing(project, refusal, damage, words, complaint):
    (project.root / "runs").mkdir()
    (project.root / "mine.yaml").write_text("measure: true\nmeasure: false\n")
    if damage:
        damage(project.root)
    given = {"configfiles": [project.root / "mine.yaml"], "folder": project.root / "runs"}
    assert complaint in refusal(project, **{name: given.get(name, value) for name, value in words.items()})
    assert not (project.root / "runs/results").exists()


def test_records_of_another_machine_are_kept_and_can_be_rendered(project, plan, refusal):
    record_path = project.records()[0]
    foreign = json.loads(record_path.read_text())
    foreign["machine"]["kind"] = "NVIDIA Imaginary"
    record_path.write_text(json.dumps(foreign))
    assert "records of another machine (NVIDIA Imaginary;" in refusal(project)
    assert plan(project, measure=False) == {"tabulate_timing": 1, "tabulate_cells": 1, "writeup": 1}
    assert json.loads(record_path.read_text()) == foreign
