import gzip
import json

import pandas as pd

from pipeline.instruments.profilers.perfetto import write_perfetto
from pipeline.instruments.profilers.trace import build_trace


def test_ranges_and_device_work_are_complete_events_in_lanes_of_their_own(tmp_path):
    trace = build_trace(
        pd.DataFrame({"name": ["gemm"], "stream": [7], "start_us": [5.5], "duration_us": [2.0], "correlation": [3]}),
        pd.DataFrame({"correlation": [3], "launch_us": [1.0], "thread": [11]}),
        pd.DataFrame({"name": ["forward"], "thread": [11], "start_us": [0.0], "duration_us": [4.0]}),
        "nsys",
    )
    write_perfetto(trace, tmp_path / "trace.json.gz")
    with gzip.open(tmp_path / "trace.json.gz", "rt") as file:
        events = json.load(file)["traceEvents"]
    ranges, work = (event for event in events if event["ph"] == "X")
    assert (ranges["name"], ranges["tid"], ranges["ts"], ranges["dur"]) == ("forward", 11, 0.0, 4.0)
    assert (work["name"], work["cat"], work["tid"], work["ts"], work["dur"]) == ("gemm", "matmul", 7, 5.5, 2.0)
    assert work["args"] == {"category": "matmul", "path": "forward", "correlation": 3}
    assert ranges["pid"] != work["pid"]
