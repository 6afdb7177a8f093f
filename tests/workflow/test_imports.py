import re
import subprocess
import sys
from pathlib import Path

WORKFLOW = Path(__file__).parents[2] / "workflow"
HEAVY = {"torch", "numpy", "pandas", "vl_convert", "scipy"}


def test_planning_imports_nothing_that_only_measuring_or_drawing_needs():
    rules = (WORKFLOW / "Snakefile", *WORKFLOW.glob("rules/*.smk"))
    imports = "\n".join(re.findall(r"^from pipeline.*", "\n".join(path.read_text() for path in rules), re.MULTILINE))
    assert "pipeline.report" in imports
    code = f"{imports}\nimport sys; sys.exit(' '.join({HEAVY} & sys.modules.keys()) or 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stderr, done.returncode) == ("", 0)
