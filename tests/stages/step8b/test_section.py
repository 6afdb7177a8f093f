import re

import pytest

from pipeline.report.page_parts import Figure, Table
from pipeline.stages.step8b.cell import FUSIONS
from pipeline.stages.step8b.report import facts, figures, section

from ..sections import built, contents, gaps

ALL = ("h200", "small_gpu", "skipped", "small", "several")


@pytest.fixture
def text(undrawn, tmp_path):
    return lambda rows: built(section.build, "step8b")(rows, tmp_path)


@pytest.mark.parametrize("name", ALL)
def test_the_section_holds_no_gap_in_its_words(request, text, name):
    assert gaps(text(request.getfixturevalue(name))) == []


def test_the_answer_compares_ours_with_the_compiled_peer_of_the_model_with_the_most_work(several):
    assert re.fullmatch(
        r"8B at context 32,768 on 2 ranks: a step with ours takes 4\.70 s \(.*% MFU, 94\.0 GB at the peak\), 0\.78\d "
        r"times the 6\.00 s \(.*% MFU, 120 GB at the peak\) with torch's compiled parts\.",
        section.build(several).answer,
    )


def test_without_ours_the_answer_is_of_the_peer_alone(small_gpu):
    built_section = section.build(small_gpu)
    assert "a step with torch's compiled parts takes 6.00 s" in built_section.answer
    assert "CUDA out of memory (ours)." in built_section.parts[-1]
    assert not built_section.actions


def test_the_budget_adds_up_to_the_step_and_begins_with_what_takes_longest(h200):
    _, budget = (part.cells for part in section.build(h200).parts if isinstance(part, Table))
    assert list(budget["kind of work"])[:2] == ["matmul", "attention"]
    assert budget["share of ours (%)"].astype(float).sum() == pytest.approx(100, abs=0.5)
    run = facts.runs(h200)[0]
    saved = run.budget_ms["torch_compiled"] - run.budget_ms["ours"]
    assert budget["saved (ms)"].str.replace(",", "").astype(float).sum() == pytest.approx(saved.sum(), rel=0.01)


def test_the_waterfall_leads_from_the_peer_through_every_fusion_to_ours(h200):
    run = facts.runs(h200)[0]
    ladder = figures.ladder(run)
    assert len(ladder) == 1 + len(FUSIONS)
    assert ladder.iloc[0] == run.steps.loc["torch_compiled", "median_ms"]
    assert ladder.iloc[-1] == run.steps.loc["ours", "median_ms"]
    assert [part.name for part in section.build(h200).parts if isinstance(part, Figure)] == ["waterfall"]


def test_a_loss_that_jumps_on_its_way_down_is_told_with_its_step(h200, text):
    assert "jumps" not in text(h200)
    rows = h200.copy()
    descent = rows.index[(rows["measures"] == "descent") & (rows["impl"] == "ours")][0]
    rows.at[descent, "losses"] = [12.0, 7.5, 9.5, 7.0]
    assert "(at step 3 it jumps to 9.50)" in text(rows)
    assert text(rows).count("jumps") == 1


def test_ours_is_advised_where_it_is_clearly_faster(h200):
    (action,) = section.build(h200).actions
    assert (
        "takes 6.00 s and 120 GB with every block checkpointed (torch's compiled parts), and 4.70 s and 94.0 GB"
        in action.why
    )
    slower = h200.copy()
    times = ["median_ms", "q1_ms", "q3_ms"]
    slower.loc[slower["impl"] == "ours", times] *= 1.3
    assert section.build(slower).actions == []


def test_drawn_twice_the_section_has_the_same_bytes(h200, tmp_path):
    texts = [built(section.build, "step8b")(h200, tmp_path / name) for name in ("a", "b")]
    assert texts[0] == texts[1]
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
