from pipeline.measure_command import _row_lines

TIMED = {"impl": "eager", "phase": "forward", "status": "ok", "median_ms": 1.23456}


def without(impl, status="skipped", reason="needs a CUDA GPU"):
    return {"impl": impl, "phase": "forward", "status": status, "reason": reason}


def test_rows_without_figures_have_a_line_per_reason_after_those_with():
    rows = [without("triton"), TIMED, without("flex"), without("mine", "wrong", "output is off")]
    assert list(_row_lines("flash", rows)) == [
        "impl=eager phase=forward status=ok median_ms=1.235",
        "rows=2 phase=forward status=skipped reason=needs a CUDA GPU",
        "impl=mine phase=forward status=wrong reason=output is off",
    ]


def test_a_line_for_several_rows_has_what_they_share():
    off = without("mine", "wrong", "output is off")
    lines = list(_row_lines("flash", [TIMED, off, off | {"phase": "backward"}]))
    assert lines[1:] == ["rows=2 impl=mine status=wrong reason=output is off"]


def test_a_cell_without_figures_has_one_line_for_one_reason():
    assert list(_row_lines("flash", [without("triton"), without("flex")])) == ["status=skipped reason=needs a CUDA GPU"]
    assert list(_row_lines("flash", [without("triton")])) == ["status=skipped reason=needs a CUDA GPU"]
