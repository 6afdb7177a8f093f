import pytest

from pipeline.report.versus import FASTER, UNDECIDED
from pipeline.stages.step8b.report import build

from ..section_parts import faults, parts


def with_losses(rows, impl, losses):
    """Return rows where the loss of an implementation took another way."""
    is_meant = (rows["measures"] == "descent") & (rows["impl"] == impl)
    return rows.assign(losses=[losses if meant else own for own, meant in zip(rows["losses"], is_meant, strict=True)])


@pytest.mark.parametrize("name", ["h200", "small_gpu", "small", "several"])
def test_the_section_is_whole_on_whatever_was_measured(request, name, tmp_path):
    section = build(request.getfixturevalue(name), {})
    assert faults(section, tmp_path) == {}


def test_every_step_stands_beside_the_fastest_of_torchs(h200):
    steps = parts(build(h200, {}))["steps"].rows.set_index("impl")
    assert steps["verdict"].dropna().to_dict() == {
        "ours": FASTER,
        "ours_fully_shard": FASTER,
        "torch_eager": UNDECIDED,  # 3% in single processes
    }
    assert steps.loc["ours", "ratio"] == pytest.approx(6000 / 4700, rel=0.01)


def test_the_cell_with_the_most_work_is_told_and_no_row_of_another_is_compared_with_its(several, h200):
    steps, alone = (parts(build(rows, {}))["steps"].rows for rows in (several, h200))
    assert set(steps["size"]) == {"8B"}
    assert steps["ratio"].tolist() == pytest.approx(alone["ratio"].tolist(), nan_ok=True)


def test_without_a_time_of_torchs_nothing_is_faster(h200):
    section = build(h200[~h200["impl"].str.startswith("torch")].reset_index(drop=True), {})
    assert section.changes == []
    assert parts(section)["steps"].rows["verdict"].isna().all()


def test_fusions_are_no_chart_and_say_how_many_steps_each_is_of(h200):
    section = build(h200, {})
    fusions = parts(section)["fusions"].rows
    assert list(fusions["steps_timed"]) == [1] * 6 + [3]
    assert fusions["saved_ms"].sum() == pytest.approx(fusions["step_ms"].iloc[0] - fusions["step_ms"].iloc[-1])
    assert [part.name for part in section.parts] == ["steps", "budget"]


def test_the_budgets_kinds_add_up_to_the_profiled_step(h200):
    drawn = parts(build(h200, {}))["budget"].rows.groupby("impl")["work_ms"].sum()
    assert drawn.to_dict() == pytest.approx(
        {"torch_compiled": 6000, "ours": 4700, "ours_fully_shard": 4750, "torch_eager": 6200}
    )


def test_the_losses_are_drawn_from_the_first_step_on(h200):
    drawn = parts(build(h200, {}))["losses"].rows
    assert drawn.groupby("impl")["step"].agg(["min", "max"]).to_dict("index")["ours"] == {"min": 1, "max": 3}
