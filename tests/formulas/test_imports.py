import subprocess
import sys
from pathlib import Path

import pipeline.formulas

MODULES = sorted(Path(pipeline.formulas.__file__).parent.glob("*.py"))


def test_modules_that_the_workflow_reads_import_no_torch():
    names = ", ".join(f"pipeline.formulas.{path.stem}" for path in MODULES if path.stem != "__init__")
    code = f"import sys; import {names}, pipeline.model.precision; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
