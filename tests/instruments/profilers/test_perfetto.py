import gzip
import json

from pipeline.instruments.profilers.perfetto import write_perfetto

from .test_trace import trace


def test_ranges_and_device_work_are_complete_events_in_separate_lanes(tmp_path):
    found = trace([("gemm", 7, 5.5, 2.0, 3)], [(3, 1.0, 11)], [("forward", 11, 0.0, 4.0)])
    write_perfetto(found, tmp_path / "trace.json.gz")
    with gzip.open(tmp_path / "trace.json.gz", "rt") as file:
        events = json.load(file)["traceEvents"]
    ranges, work = (event for event in events if event["ph"] == "X")
    assert (ranges["name"], ranges["tid"], ranges["ts"], ranges["dur"]) == ("forward", 11, 0.0, 4.0)
    assert (work["name"], work["cat"], work["tid"], work["ts"], work["dur"]) == ("gemm", "matmul", 7, 5.5, 2.0)
    assert work["args"] == {"category": "matmul", "path": "forward", "correlation": 3}
    assert ranges["pid"] != work["pid"]
