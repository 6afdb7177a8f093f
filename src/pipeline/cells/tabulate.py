"""Turn records into tidy tables: one of a stage's rows, one of its cells and how they were run."""

import csv
import io
import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.cells import fields
from pipeline.cells.library_environment import LOADER
from pipeline.cells.record import read_record
from pipeline.cells.rows import STATUSES, WITH_VALUES, RowTypes
from pipeline.cells.stage import SETTING, Stage, Stages
from pipeline.errors import UserError
from pipeline.instruments.machine.identity import SOFTWARE
from pipeline.peers import PEERS

if TYPE_CHECKING:
    import pandas as pd

# Libraries whose kernels are measured alongside ours.
LIBRARIES = ("cudnn", "nccl")
# A record's keys about how busy the host was, and about the scheduler's job if there was one.
HOST_PARTS = ("cores", "others_cores", "busy", "load_before", "load_after")
SCHEDULER_PARTS = ("name", "job", "nodes")
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
# No pandas here: a run makes dozens of tables, each in its own process, and importing pandas takes longer than a table.


def stage_lines(stage: Stage, records: Iterable[Mapping[str, Any]]) -> tuple[list[str], list[dict[str, Any]]]:
    """Return the columns and rows of a stage's records: axes, row, settings, machine and software; lists stay lists.

    The columns are those of the stage that at least one row has, in declared order; `reason` is always included.
    """
    axes = asdict(stage.cell_type())  # defaults for axes that older records lack
    lines = [
        {
            **axes,
            **record["cell"],
            **row,
            **{SETTING + name: value for name, value in record["settings"].items()},
            **_machine(record),
        }
        for record in records
        for row in record["rows"]
    ]
    _use_highest_peak(lines)
    present = dict.fromkeys(["reason", *(name for line in lines for name in line)])
    order = dict.fromkeys([*stage.table_columns, *present])
    return [name for name in order if name in present], lines


def _use_highest_peak(lines: Iterable[dict[str, Any]]) -> None:
    """Recompute the MFU of all lines against the highest peak that any of them has for their precision.

    Without a data sheet each process measures its own peak, some on a busy host. The faster of two steps could then
    have the lower MFU, or one above 100%.
    """
    peaks: dict[Any, float] = {}
    rated = [line for line in lines if line.get("mfu_pct")]
    for line in rated:
        peak = 100 * line["model_tflops_per_s"] / line["mfu_pct"]
        peaks[line.get("precision")] = max(peak, peaks.get(line.get("precision"), 0.0))
    for line in rated:
        peak = peaks[line.get("precision")]
        line["mfu_pct"] = 100 * line["model_tflops_per_s"] / peak
        if line.get("peak_tflops_per_s"):
            line["peak_tflops_per_s"] = peak


def stage_rows(stage: Stage, records: Iterable[Mapping[str, Any]]) -> "pd.DataFrame":
    """Return the rows of a stage's records as a DataFrame, for sections and notebooks; see `stage_lines`."""
    import pandas as pd

    columns, lines = stage_lines(stage, records)
    return pd.DataFrame(lines, columns=columns)


def row_table(paths: Iterable[Path], stages: Stages) -> str:
    """Return the rows of one stage's records as CSV, lists as JSON; raises UserError for records of several stages."""
    records = [read_record(path, stages) for path in paths]
    names = sorted({record["stage"] for record in records})
    if len(names) != 1:
        raise UserError(f"the records must be of one stage, got {' and '.join(names)}")
    return _csv(*stage_lines(stages[names[0]], records))


def cell_table(paths: Iterable[Path], stages: Stages) -> str:
    """Return one line per cell as CSV: its status, when and where it ran, for how long, and its command."""
    records = [read_record(path, stages) for path in paths]
    lines = [cell_line(record, stages[record["stage"]].row_types) for record in records]
    return _csv(list(dict.fromkeys(name for line in lines for name in line)), lines)


def _csv(columns: Sequence[str], lines: Iterable[Mapping[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _cell(value) for name, value in line.items()} for line in lines)
    return text.getvalue()


def cell_line(record: Mapping[str, Any], row_types: RowTypes) -> dict[str, Any]:
    """Return a record's line in a table of cells: cell, outcome, when and on which machine it was measured."""
    machine = record["machine"]
    cores = machine.get("cores") or machine["cpu"]["logical_cores"]
    seconds = {f"{name}_s": value for name, value in record["seconds"].items()}
    return {
        "stage": record["stage"],
        "cell": " ".join(f"{axis}={fields.text(value)}" for axis, value in record["cell"].items()),
        **outcome(record["rows"], row_types),
        "started_at": record["started_at"],
        "process": record["process"],
        **seconds,
        **{f"host_{name}": record.get("host", {}).get(name) for name in HOST_PARTS},
        **{f"scheduler_{name}": record.get("scheduler", {}).get(name) for name in SCHEDULER_PARTS},
        **_machine(record),
        **{name: machine["software"].get(name) for name in LIBRARIES},
        "peers": ", ".join(_peers(record)) or None,
        "cpu": f"{machine['cpu']['model']}, {cores} cores",
        "cores": cores,
        "memory_bytes": machine["memory_bytes"],
        "gpu_memory_bytes": (machine["gpus"] or [{}])[0].get("memory_bytes"),
        "gpus": " ".join(sorted(machine.get("gpus_taken", []))) or None,
        "variables": shlex.join(_variables(record)) or None,
        **{name: record["code"].get(name) for name in ("digest", "commit")},
        "command": record["command"],
        "log": record.get("log"),
    }


def outcome(rows: list[dict[str, Any]], row_types: RowTypes) -> dict[str, str]:
    """Return a cell's status and reason: the worst among its rows with a value, or among all rows if none has one.

    If only some values are unstable, the reason says how many. A reference counts only if nothing else has a value.
    """
    timed = [row for row in rows if row["status"] in WITH_VALUES]
    with_value = [row for row in timed if not row_types.is_reference(row)] or timed
    worst = max(with_value or rows, key=lambda row: STATUSES.index(row["status"]))
    status, reason = worst["status"], worst.get("reason", "")
    same_status = sum(row["status"] == status for row in with_value)
    if status == "unstable" and same_status < len(with_value):
        reason = f"{same_status} of {len(with_value)} values{', the first' if same_status > 1 else ''}: {reason}"
    return {"status": status, "reason": reason}


def _machine(record: Mapping[str, Any]) -> dict[str, Any]:
    facts = record["machine"]
    return {"machine": facts["kind"], **{name: facts["software"][name] for name in SOFTWARE}}


def _peers(record: Mapping[str, Any]) -> list[str]:
    """List the installed peers that a cell's stage measures, with their versions."""
    found = record["code"].get("peers", {})
    return [f"{package} {found[name]}" for name, package in PEERS.items() if found.get(name, "absent") != "absent"]


def _variables(record: Mapping[str, Any]) -> list[str]:
    """List the environment variables that libraries read, as assignments; the loader's are known as digests only."""
    found = record["code"].get("libraries", {})
    return [f"{name}={value}" for name, value in found.items() if not name.startswith(LOADER)]


def _cell(value: Any) -> Any:
    """Format a value for CSV: a list as JSON; text that a spreadsheet would run as a formula gets a leading quote."""
    if isinstance(value, list):
        return json.dumps(value)
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA_STARTS) else value
