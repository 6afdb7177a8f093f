import pytest

from pipeline.formulas.checkpointing import KINDS, blocks_run_again

BF16 = {"precision": "bf16", "context_length": 1024}
CATEGORIES = ("parameters", "gradients", "optimizer_state", "activations", "temporaries", "other")


def part(section, name):
    return next(each for each in (*section.parts, *section.for_course) if each.name == name)


def test_a_peak_is_of_the_second_step_and_its_kinds_make_it_up(section_of, cell_of):
    record = cell_of(**BF16)
    peaks = {(row["step"], row["phase"]): row["peak_bytes"] for row in record["rows"] if row["kind"] == "peak"}
    section = section_of(record)
    drawn = part(section, "composition").drawn
    last = max(size for (step, _), size in peaks.items() if step == 2)
    assert last != max(size for (step, _), size in peaks.items() if step == 1)
    assert 1e9 * drawn["gb"].sum() == pytest.approx(last)
    assert f"{last / 1e9:.1f} GB" in section.answer


def test_the_timeline_s_total_is_the_sum_of_its_kinds(section_of, cell_of):
    drawn = part(section_of(cell_of(**BF16)), "timeline").drawn
    by_kind = drawn.pivot(index="events", columns="category", values="gb")
    assert by_kind["total"].tolist() == by_kind.drop(columns="total").sum(axis=1).tolist()
    assert by_kind["total"].max() == 30


def test_a_change_for_memory_needs_less_memory(section_of, cell_of):
    plain, flash = cell_of(**BF16), cell_of(**BF16, attention="flash")
    (change,) = section_of(plain, flash).changes
    assert change.judged["verdict"] == "faster"
    short = {"precision": "bf16", "context_length": 128}  # where the update is the peak
    assert section_of(cell_of(**short), cell_of(**short, attention="flash")).changes == []


def test_a_change_between_two_gpus_says_so(section_of, cell_of):
    cells = {"precision": "bf16", "context_length": 1024}
    wheres = [
        section_of(cell_of(**cells), cell_of(card, **cells, attention="flash")).changes[0].where for card in ("1", "2")
    ]
    assert ["two GPUs" in where for where in wheres] == [False, True]


def test_where_plain_attention_does_not_fit_steps_are_compared_with_the_first_that_does(
    section_of, cell_of, out_of_memory
):
    kept, flash = {"checkpoint_every": 1}, {"attention": "flash"}
    section = section_of(out_of_memory(**BF16), cell_of(**BF16, **kept), cell_of("2", **BF16, **flash))
    table = part(section, "variants")
    rows = table.rows.set_index("words")
    assert "OOM" in table.markdown().splitlines()[4]
    assert list(rows["verdict"].fillna("")) == ["", "", "faster"]
    assert list(rows["gpus"].fillna(0)) == [0, 1, 2]
    assert section.changes[0].judged["ratio"] == pytest.approx(1.3 / 0.8)


def test_each_context_has_its_own_first_and_the_table_its_length(section_of, cell_of):
    cells = [
        {"precision": "bf16", "context_length": context, "attention": attention, "checkpoint_every": every}
        for context in (256, 512, 1024, 2048)
        for attention in ("eager", "flash")
        for every in (0, 1)
    ]
    rows = part(section_of(*(cell_of(**cell) for cell in cells)), "variants").rows
    assert list(rows["context_length"].unique()) == [512, 1024, 2048]
    assert rows["gain"].isna().groupby(rows["context_length"]).sum().eq(1).all()


def test_precisions_stand_beside_each_other_and_what_did_not_fit_is_told(section_of, cell_of, out_of_memory):
    section = section_of(cell_of(**BF16), cell_of(context_length=1024), out_of_memory(context_length=2048))
    table = part(section, "peaks")
    row = table.rows.iloc[0]
    assert row["ratio_bytes"] == pytest.approx(row["peak_bytes_bf16"] / row["peak_bytes_fp32"])
    assert table.markdown().count("OOM") >= 1
    assert table.rows["formula_bf16"].iloc[0] == pytest.approx(1, abs=0.01)


def test_the_residual_stream_by_formula_is_what_was_recorded(section_of, cell_of):
    rows = part(section_of(cell_of(context_length=512)), "residual").rows
    assert rows["formula_bytes"].tolist() == rows["recorded_bytes"].tolist() == [4 * 512 * 2560 * 4]


def test_a_forward_pass_alone_has_a_timeline_beside_the_step(section_of, cell_of):
    section = section_of(*(cell_of(**BF16, mode=mode) for mode in ("inference", "forward", "train_step")))
    assert len(part(section, "timeline_forward").drawn["panel"].unique()) == 2
    assert part(section_of(cell_of(**BF16)), "timeline_forward").is_empty


def test_checkpoints_by_depth_tell_what_runs_again_and_what_they_lower(section_of, cell_of):
    deep = {"precision": "bf16", "size": "small", "context_length": 4096, "attention": "flash", "num_layers": 16}
    cells = [cell_of(**deep), *(cell_of(**deep, checkpoint_every=1, checkpointing=kind) for kind in KINDS)]
    rows = part(section_of(*cells, cell_of(**BF16)), "depth").rows.set_index("kept")
    assert rows["again"].tolist() == [
        0,
        *(blocks_run_again(16, 1, kind) for kind in ("segments", "recursive")),
    ]
    assert rows["lowered_bytes"].idxmin() == "every 1, recursive"
    assert rows["verdict"].fillna("").tolist() == ["", "slower", "slower"]


def test_measured_intervals_stand_beside_those_by_formula_at_the_longest_context(section_of, cell_of):
    cells = [
        cell_of(precision="bf16", context_length=context, checkpoint_every=every)
        for context in (512, 2048)
        for every in (0, 1, 4)
    ]
    rows = part(section_of(*cells), "intervals").rows
    assert set(rows["context_length"]) == {2048}
    measured = rows.dropna(subset="before_update_bytes")
    assert list(measured["checkpoint_every"]) == [1, 4]
    assert measured["formula_bytes"].tolist() == pytest.approx(measured["before_update_bytes"].tolist(), rel=0.01)
    assert len(rows) > len(measured)


def test_steps_of_a_chosen_number_of_blocks_speak_only_where_nothing_else_does(section_of, cell_of):
    deep = cell_of(precision="bf16", size="small", context_length=4096, attention="flash", num_layers=4)
    assert "small" in section_of(deep, deep | {"cell": deep["cell"] | {"num_layers": 8}}).answer
    assert "2.7B" in section_of(deep, cell_of(**BF16)).answer
