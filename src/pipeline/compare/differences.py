"""List where runs differ: machines, software, code, settings."""

from collections.abc import Sequence

import pandas as pd

from pipeline.cells import fields
from pipeline.compare.runs import Record, Run
from pipeline.report.formats import text
from pipeline.report.table import Columns, Table


def differences(runs: Sequence[Run]) -> Table:
    """Return the facts that differ between runs: of machines and software, and of stages that all runs have."""
    facts = [_facts(run.records) for run in runs]
    shared = set.intersection(*({record["stage"] for record in run.records} for run in runs))
    names = [name for name in dict.fromkeys(each for own in facts for each in own) if name[0] in ("", *shared)]
    lines = [[*name, *(", ".join(sorted(own.get(name, ()))) or None for own in facts)] for name in names]
    lines = [line for line in lines if len({*line[2:]}) > 1]
    columns: Columns = [("stage", "stage", text), ("what", "what", text), *((run.name, run.name, text) for run in runs)]
    rows = pd.DataFrame(lines, columns=["stage", "what", *(run.name for run in runs)])
    return Table("differences", "What differs:", rows.replace({"stage": {"": None}}), columns, all_rows=True)


def _facts(records: Sequence[Record]) -> dict[tuple[str, str], set[str]]:
    """Collect all values of each fact of a run, by stage ("" for those of the machine) and name."""
    values: dict[tuple[str, str], set[str]] = {}
    for record in records:
        machine, stage = record["machine"], record["stage"]
        found = {
            ("", "machine"): machine["kind"],
            ("", "cpu"): machine["cpu"]["model"],
            ("", "logical cores"): machine["cpu"]["logical_cores"],
            ("", "GPUs"): len(machine["gpus"]),
            ("", "threads"): machine["threads"],
            ("", "os"): machine["os"],
            **{("", name): version for name, version in machine["software"].items()},
            ("", "commit"): record["code"]["commit"],
            (stage, "code"): record["code"]["digest"],
            **{(stage, name): value for name, value in record["settings"].items()},
            **{(stage, f"code of {own['name']}"): own["digest"] for own in record.get("subjects", [])},
        }
        for name, value in found.items():
            values.setdefault(name, set()).add(fields.text(value))
    return values
