from itertools import product

import pytest

from pipeline.formulas.attention import Shape, peak_bytes
from pipeline.stages.attention.report import build

from ..frames import failed, frame_of, shown, timed

SETTINGS = {"setting_batch_size": 8, "setting_is_causal": False, "clock": "host"}
PHASES = ("forward", "backward")


def rows_of(seq_len, eager_ms, compiled_ms, head_dim=64, **columns):
    formula = peak_bytes(Shape(8, 1, seq_len, head_dim, is_causal=False), 4, "cuda")
    shared = SETTINGS | {"head_dim": head_dim, "seq_len": seq_len, "memory_bytes": 8e10, "device_type": "cuda"}
    shared |= {"peak_bytes": formula + 7, "before_backward_bytes": 9, "workspace_bytes": 7, "model_peak_bytes": formula}
    modes = product({"eager": eager_ms, "compiled": compiled_ms}.items(), PHASES)
    return [timed(ms, **shared | {"mode": mode, "phase": phase} | columns) for (mode, ms), phase in modes]


def out_of_memory(seq_len, head_dim=64, modes=("eager", "compiled")):
    where = SETTINGS | {"head_dim": head_dim, "seq_len": seq_len}
    return [failed(mode=mode, phase=phase, **where) for mode in modes for phase in PHASES]


def build_section(*rows):
    return build(frame_of("attention", rows), {})


def test_lengths_slower_when_compiled_are_reported_and_oom_rows_have_no_ratio():
    section = build_section(*rows_of(256, 0.2, 0.3), *rows_of(8192, 8.0, 6.0), *out_of_memory(65536))
    found = shown(section)["times"].rows.drop_duplicates("seq_len").set_index("seq_len")
    assert found["verdict"].dropna().to_dict() == {256: "slower", 8192: "faster"}
    assert found["ratio"].dropna().to_dict() == pytest.approx({256: 2 / 3, 8192: 4 / 3})
    assert "At 8,192" in section.answer
    last = shown(section)["times"].markdown().splitlines()[-1]
    assert last.count("OOM") > 2
    assert "×" not in last


def test_the_course_tables_have_every_head_dim_and_exclude_workspaces():
    section = build_section(*(row for width in (16, 64, 128) for row in rows_of(1024, 1.0, 1.0, head_dim=width)))
    grid = shown(section)["grid"].rows
    assert grid["head_dim"].tolist() == [16, 64, 128, 16, 64, 128]
    assert set(shown(section)["times"].rows["head_dim"]) == {64}
    held = shown(section)["held"].rows
    assert held["head_dim"].tolist() == [16, 128]
    assert (held["peak_bytes_peer"] == held["model_peak_bytes_peer"]).all()
    assert set(held["before_backward_bytes_peer"]) == {2}


def test_tensors_add_up_to_the_peak_that_did_not_fit_and_a_cpu_shows_saved_bytes():
    rows = [*rows_of(1024, 1.0, 1.0), *out_of_memory(32768), *out_of_memory(65536)]
    *parts, whole, kept = shown(build_section(*rows))["tensors"].rows["size_bytes"]
    assert sum(parts) == whole == peak_bytes(Shape(8, 1, 32768, 64, is_causal=False), 4, "cuda")
    assert kept < whole / 1000
    rows = rows_of(1024, 1.0, 1.0, peak_bytes=None, saved_bytes=5e7, model_saved_bytes=5e7, device_type="cpu")
    assert shown(build_section(*rows))["memory"].rows["gb"].tolist() == pytest.approx([0.05] * 3)
