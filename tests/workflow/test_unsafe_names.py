"""Hostile names in paths: a shell sees each only as a word, whatever it contains."""

import json
import re

import pytest

from .conftest import WITHOUT_WORKER, Project

pytestmark = pytest.mark.workflow

# Every way to make a shell create this file, and other characters that it would not take literally.
HOSTILE = "$(touch PWNED) `touch PWNED`; touch PWNED; 'a \"b * -c"


def test_a_record_whose_path_names_no_cell_stops_the_run_before_any_shell(project, refusal):
    record = project.records()[0]
    copy = record.parents[2] / "x$(touch PWNED).json"
    copy.write_text(record.read_text())
    message = refusal(project, "results/timing/fp32.csv", measure=False)
    assert message.startswith(f"snakemake: {copy.relative_to(project.root)}: ")


def test_tables_are_made_for_a_value_that_a_shell_would_execute(project):
    project.edit("src/pipeline/model/precision.py", '("fp32",', f'("fp32", {HOSTILE!r},')
    record = next(path for path in project.records() if "precision=fp32" in path.parts)
    content = json.loads(record.read_text())
    content["cell"]["precision"] = HOSTILE
    copy = project.root / str(record.relative_to(project.root)).replace("precision=fp32", f"precision={HOSTILE}")
    copy.parent.mkdir(parents=True)
    copy.write_text(json.dumps(content))
    table = f"results/timing/{HOSTILE}.csv"
    project.snakemake("--config", "measure=false", "--", "results/timing/cells.csv", table)
    assert (project.root / table).is_file()
    assert HOSTILE.replace('"', '""') in (project.root / "results/timing/cells.csv").read_text()
    assert not list(project.root.rglob("PWNED*"))


def test_every_word_that_a_rule_gives_the_shell_is_quoted(measured):
    rules = "".join(path.read_text() for path in (measured.root / "workflow/rules").glob("*.smk"))
    commands = re.findall(r'(?:^ *"[^"\n]*"\n)*^ *"[^"\n]*>\{log[^"\n]*"(?:\n *"[^"\n]*")*', rules, re.MULTILINE)
    assert sum(command.count("python -m pipeline") for command in commands) == rules.count("python -m pipeline") > 0
    # Doubled braces are the shell's own.
    words = {word for command in commands for word in re.findall(r"(?<!\{)\{[^{}]+\}(?!\})", command)}
    assert "{output.record:q}" in words
    assert {word for word in words if not word.endswith(":q}")} == {"{resources.gpu}", "{params.recipe}", "{DISK_FULL}"}


def test_names_of_checkout_and_working_folder_may_have_spaces_and_quotes(project):
    project = Project(project.root.rename(project.root.with_name("it's a project")), WITHOUT_WORKER)
    folder, table = project.root / 'my run\'s "$(touch PWNED)"', "results/accounting/fsdp.csv"
    formulas = "overrides={accounting: {grids: [{question: [fsdp]}]}}"
    project.snakemake("--directory", folder.name, table, "--config", formulas)
    assert (folder / table).is_file()
    assert not list(project.root.rglob("PWNED*"))
