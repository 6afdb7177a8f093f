"""The command `run`: run the workflow, from a checkout or an installed wheel, in the current folder."""

import os
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from pipeline.errors import UserError

CHECKOUT = Path(__file__).parents[2]
INSTALLED = Path(sysconfig.get_path("data"), "share/llm-systems-pipeline")


def run_workflow(words: Sequence[str], scale: str) -> NoReturn:
    """Replace this process by Snakemake with the project's workflow and these words; raises UserError without one."""
    scale_words = ["--config", f"scale={scale}"] if scale else []
    command = ["-m", "snakemake", "--snakefile", str(snakefile()), *scale_words, *words]
    # The rules call `python`: it must be this one, even if its environment is not activated.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    os.execv(sys.executable, [sys.executable, *command])


def snakefile() -> Path:
    """Return the workflow's Snakefile: that of the checkout this code is in, else the installed one."""
    places = [root / "workflow/Snakefile" for root in (CHECKOUT, INSTALLED)]
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        raise UserError(f"run: no workflow at {' or '.join(map(str, places))}: install the package with pip")
    return found
