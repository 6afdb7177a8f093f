import pytest

from pipeline.formulas.attention import Shape, peak_bytes
from pipeline.report.table import Table
from pipeline.stages.attention.report import build

from ..frames import failed, frame_of, lacking, shown, timed, written

SETTINGS = {"setting_batch_size": 8, "setting_is_causal": False, "clock": "host"}
MEMORY = 8e10


def rows_of(seq_len, eager_ms, compiled_ms, head_dim=64, **columns):
    """Return the rows of one cell: both phases of both modes."""
    formula = peak_bytes(Shape(8, 1, seq_len, head_dim, is_causal=False), 4, "cuda")
    shared = {
        **{"head_dim": head_dim, "seq_len": seq_len, "memory_bytes": MEMORY, "device_type": "cuda"},
        **{"peak_bytes": formula + 7, "before_backward_bytes": 9, "workspace_bytes": 7, "model_peak_bytes": formula},
        **SETTINGS,
    }
    times_ms = {"eager": eager_ms, "compiled": compiled_ms}
    return [
        timed(times_ms[mode], **shared | {"mode": mode, "phase": phase} | columns)
        for mode in times_ms
        for phase in ("forward", "backward")
    ]


def out_of_memory(seq_len, head_dim=64, modes=("eager", "compiled")):
    return [
        failed(head_dim=head_dim, seq_len=seq_len, mode=mode, phase=phase, **SETTINGS)
        for mode in modes
        for phase in ("forward", "backward")
    ]


def told(*rows):
    return build(frame_of("attention", rows), {})


def test_compiling_that_makes_short_lengths_slower_is_told_so():
    section = told(*rows_of(256, 0.2, 0.3), *rows_of(8192, 8.0, 6.0))
    found = shown(section)["compiled"].rows.drop_duplicates("seq_len").set_index("seq_len")
    assert found["verdict"].to_dict() == {256: "slower", 8192: "faster"}
    assert found["ratio"].to_dict() == pytest.approx({256: 2 / 3, 8192: 4 / 3})


def test_the_answer_is_of_the_longest_that_both_modes_did():
    section = told(*rows_of(1024, 1.0, 1.0), *rows_of(8192, 8.0, 6.0), *out_of_memory(65536))
    assert "At 8,192" in section.answer
    assert "1.33 (faster)" in section.answer


def test_what_ran_out_of_memory_keeps_its_row_and_has_no_ratio():
    section = told(*rows_of(8192, 8.0, 6.0), *out_of_memory(65536))
    last = shown(section)["lengths"].markdown().splitlines()[-1]
    assert last.count("OOM") >= 2
    assert "×" not in last
    assert all(line.endswith("| OOM |") for line in shown(section)["compiled"].markdown().splitlines()[-2:])


def test_the_course_s_table_has_every_width():
    section = told(*(row for width in (16, 32, 64, 128) for row in rows_of(1024, 1.0, 1.0, head_dim=width)))
    assert shown(section)["grid"].rows["head_dim"].tolist() == [16, 32, 64, 128]
    assert set(shown(section)["lengths"].rows["head_dim"]) == {64}


def test_memory_is_counted_without_workspaces():
    grid = shown(told(*rows_of(1024, 1.0, 1.0)))["grid"].rows.iloc[0]
    assert grid["peak_bytes_peer_forward"] == grid["model_peak_bytes_peer_forward"]
    assert grid["before_backward_bytes_peer_forward"] == 2


@pytest.mark.parametrize(
    ("rows", "word"),
    [
        ([*rows_of(16384, 1.0, 1.0), *out_of_memory(65536)], "agrees"),
        ([*rows_of(65536, 1.0, 1.0), *out_of_memory(131072)], "is wrong"),
        ([*rows_of(1024, 1.0, 1.0), *out_of_memory(2048)], "is wrong"),
        (rows_of(16384, 1.0, 1.0), None),
        ([*rows_of(16384, 1.0, 1.0), *out_of_memory(65536, modes=["compiled"])], None),
    ],
)
def test_the_formula_is_borne_out_only_by_what_fitted_and_what_ran_out(rows, word):
    caption = shown(told(*rows))["accounting"].caption
    assert [each for each in ("agrees", "is wrong") if f"formula {each}" in caption] == ([word] if word else [])


def test_the_tensors_of_the_smallest_that_ran_out_make_up_its_peak():
    section = told(*rows_of(1024, 1.0, 1.0), *out_of_memory(32768), *out_of_memory(65536))
    table = shown(section)["accounting"]
    *parts, whole, kept = table.rows["bytes"]
    assert "length 32768" in table.caption
    assert sum(parts) == whole == peak_bytes(Shape(8, 1, 32768, 64, is_causal=False), 4, "cuda")
    assert kept < whole / 1000


def test_a_cpu_which_counts_no_peak_shows_what_is_saved():
    rows = rows_of(1024, 1.0, 1.0, peak_bytes=None, saved_bytes=5e7, model_saved_bytes=5e7, device_type="cpu")
    assert shown(told(*rows))["memory"].rows["memory_gb"].tolist() == pytest.approx([0.05] * 3)


@pytest.mark.parametrize(
    "rows",
    [
        rows_of(1024, 1.0, 1.0)[:1],
        rows_of(1024, 1.0, 1.0)[3:],
        [*rows_of(1024, 1.0, 1.0)[2:], *out_of_memory(1024, modes=["eager"])],
        rows_of(1024, 1.0, 1.0, device_type=None, memory_bytes=None, workspace_bytes=None),
    ],
)
def test_any_part_of_the_rows_makes_a_whole_section(rows):
    section = told(*rows)
    assert section.answer
    assert "nan" not in written(section)


def test_the_course_s_page_asks_for_nothing_that_the_section_never_has():
    assert lacking(told(*rows_of(1024, 1.0, 1.0)), "attention") == set()


def test_the_main_page_s_tables_fit():
    lengths = [row for power in range(6, 14) for row in rows_of(2**power, 1.0, 1.0)]
    [table] = [part for part in told(*lengths).parts if isinstance(part, Table)]
    assert len(table.columns) <= 10
    assert len(table.rows) <= 12
