"""The command `run`: the workflow in the folder that one stands in, from a checkout or from what a wheel installed."""

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
    """Become Snakemake with the project's workflow, its options and targets; raises UserError where there is none."""
    asked = ["--config", f"scale={scale}"] if scale else []
    command = ["-m", "snakemake", "--snakefile", str(snakefile()), *asked, *words]
    # Its rules call `python`: this one, also where its environment is not activated.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    os.execv(sys.executable, [sys.executable, *command])


def snakefile() -> Path:
    """Return the workflow's Snakefile: the checkout's that this code is in, else the installed one."""
    places = [root / "workflow/Snakefile" for root in (CHECKOUT, INSTALLED)]
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        raise UserError(f"run: no workflow at {' or '.join(map(str, places))}: install the package with pip")
    return found
