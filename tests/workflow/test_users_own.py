import re
import shlex
import shutil
from pathlib import Path

import pytest
import yaml

from pipeline.registry import stages
from pipeline.results import load

pytestmark = [pytest.mark.workflow, pytest.mark.slow]

OUTSIDE = Path(__file__).parents[1] / "subjects/outside"
SUBJECTS = (
    "subjects={attention: {right: kernels.attention:Right, off_by_one: 'kernels/attention.py:off_by_one'},"
    " ddp: {unmeasured: kernels.attention:Right}}"
)
RUN = ("--cores", "1", "reports/writeup.md", "--config", SUBJECTS, "only=[flash]")


def test_own_kernels_are_ranked_stale_when_edited_and_not_imported_to_render(project, plan):
    shutil.copytree(OUTSIDE / "kernels", project.root / "kernels", ignore=shutil.ignore_patterns("__pycache__"))
    output = project.snakemake(*RUN)
    assert "subjects: ddp.unmeasured is not measured: this run has no cell that measures its kind" in output
    rows = load("flash", project.root / "results").set_index("impl")
    assert set(rows.loc["off_by_one", "status"]) == {"wrong"}
    assert rows.loc["right", "median_ms"].notna().all()
    page = (project.root / "reports/writeup.md").read_text()
    assert re.search(r"^\| `right` \|", page, re.MULTILINE)
    assert re.search(r"^\| `off_by_one` \|.*output is off by ", page, re.MULTILINE)
    sections = re.findall(r"^## (.*)", page, re.MULTILINE)
    assert sections[: sections.index("How far to trust it")] == [stages()["flash"].question]

    (command,) = re.findall(r"^`snakemake (.*?)` in a clone", page, re.MULTILINE)
    assert project.planned(*shlex.split(command)) == {}
    config = {"subjects": yaml.safe_load(SUBJECTS.partition("=")[2]), "only": ["flash"]}
    project.append("kernels/attention.py", "# a comment\n")
    assert plan(project, "reports/writeup.md", **config) == {}
    project.append("kernels/masks.py", "raise SystemExit('imported')\n")
    assert plan(project, "reports/writeup.md", **config)["measure_flash"] == 1

    # Rendering neither runs nor needs the user's code.
    shutil.rmtree(project.root / "kernels")
    (project.root / "reports/writeup.md").unlink()
    project.snakemake("--cores", "1", "reports/writeup.md", "--config", "measure=false", "only=[flash]")
    assert "| `right` |" in (project.root / "reports/writeup.md").read_text()
