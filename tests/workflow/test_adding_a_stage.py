import re

import pytest

from pipeline.cells.stage import FILES

from .conftest import ROOT, copied_project

pytestmark = [pytest.mark.workflow, pytest.mark.slow]

GUIDE = (ROOT / "docs/architecture.md").read_text().split("## Adding a stage")[1]
SETTINGS = "{elements: 1000, samples: 3, unstable_rel_error: 1000}"
SCALE = f"stages:\n  copy: {{settings: {SETTINGS}, grids: [{{dtype: [fp32, bf16]}}]}}\n"


@pytest.fixture
def project(tmp_path):
    project = copied_project(tmp_path / "project", SCALE)
    folder = project.root / "src/pipeline/stages/copy"
    folder.mkdir(parents=True)
    blocks = re.findall(r"```(?:python|markdown)\n(.*?)```", GUIDE, flags=re.DOTALL)
    for name, content in zip(FILES, blocks, strict=True):
        (folder / name).write_text(content)
    (folder / "__init__.py").write_text("")
    project.edit("src/pipeline/registry.py", "NAMES = (", 'NAMES = (\n    "copy",')
    return project


def test_the_example_stage_of_the_guide_is_measured_and_written_up(project):
    project.snakemake("--cores", "1", "reports/writeup.md")
    section = (project.root / "reports/writeup.md").read_text().split("## How fast does memory copy?")[1]
    assert re.search(r"Up to [\d.,]+ GB/s, by (copy|fill) in (fp32|bf16)\.", section)
    rows = re.findall(r"\| (copy|fill) \| (fp32|bf16) \| ~?[\d.,]+", section)
    assert sorted(rows) == [("copy", "bf16"), ("copy", "fp32"), ("fill", "bf16"), ("fill", "fp32")]
