from pipeline.report.lever_words import WORDS, joined, listed
from pipeline.stages.levers.cell import EAGER_AGAIN, LEVERS


def test_every_lever_has_words():
    assert set(WORDS) == {*LEVERS, EAGER_AGAIN}


def test_a_combination_is_named_in_words_in_tables_and_in_sentences():
    assert joined("eager") == listed("eager") == "eager"
    assert joined("fused+sdpa+graph") == "fused AdamW + SDPA + a CUDA graph"
    assert listed("fused+sdpa+graph") == "fused AdamW, SDPA and a CUDA graph"
