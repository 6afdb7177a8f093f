"""Write a trace as a file that Perfetto (ui.perfetto.dev) and chrome://tracing open."""

import gzip
import json
from pathlib import Path

import pandas as pd

from pipeline.instruments.profilers.trace import Trace

_HOST, _DEVICE = 0, 1


def write_perfetto(trace: Trace, path: Path) -> None:
    """Write host ranges (one lane per thread) and device work (one lane per stream) as gzipped Trace Event JSON.

    Format: Google's "Trace Event Format", complete events ("X") with times in microseconds.
    """
    events = [
        {"ph": "M", "name": "process_name", "pid": _HOST, "args": {"name": "host ranges"}},
        {"ph": "M", "name": "process_name", "pid": _DEVICE, "args": {"name": "device work"}},
        *_complete(trace.ranges, _HOST, "thread", ["path"]),
        *_complete(trace.events, _DEVICE, "stream", ["category", "path", "correlation"]),
    ]
    # json.dump would write piece by piece, which is several times slower.
    text = json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.write(text)


def _complete(table: pd.DataFrame, process: int, lane: str, details: list[str]) -> list[dict]:
    return [
        {
            "ph": "X",
            "name": row["name"],
            "cat": row.get("category", "range"),
            "pid": process,
            "tid": int(row[lane]),
            "ts": row["start_us"],
            "dur": row["duration_us"],
            "args": {name: row[name] for name in details},
        }
        for row in table.to_dict("records")
    ]
