"""What blocks of the 8B model keep, compared with measured and with available memory."""

from itertools import pairwise

import pytest

from pipeline.formulas.fused_step import LEVELS, FusedStep
from pipeline.formulas.sizes import SIZES

LAYERS = SIZES["8B"].num_layers
STEP = FusedStep(SIZES["8B"], 151_936, tokens=32_768, world_size=2, logits_bytes=2 * 4096 * 151_936)


def test_the_predicted_peak_matches_a_measurement_on_two_h200s():
    # 2026-11-25: 142,433,895,936 B with the outputs of gate and up kept in 21 layers.
    assert STEP.peak_bytes(["qkv"] * 13 + ["gate_up"] * 21) == pytest.approx(142_433_895_936, rel=0.001)


def test_each_level_adds_to_what_a_block_keeps_and_no_upgrade_lowers_the_peak():
    kept = [STEP.kept_bytes(level) for level in LEVELS]
    assert all(before < after for before, after in pairwise(kept))
    assert kept[-1] - kept[-2] == 2 * 2 * 32_768 * 11_008
    peaks = [STEP.peak_bytes(STEP.levels(upgrades)) for upgrades in range(3 * LAYERS + 1)]
    assert all(before <= after for before, after in pairwise(peaks))


@pytest.mark.parametrize(
    ("available_gb", "kept"), [(71, {"input", "attention"}), (81, {"attention", "qkv"}), (170, {"gate_up"})]
)
def test_blocks_keep_as_much_as_fits_lower_levels_and_last_blocks_first(available_gb, kept):
    levels = STEP.levels_within(1e9 * available_gb)
    assert {*levels} == kept
    assert sorted(levels, key=LEVELS.index) == levels
    upgrades = sum(map(LEVELS.index, levels))
    assert STEP.peak_bytes(levels) <= 1e9 * available_gb
    assert upgrades == 3 * LAYERS or STEP.peak_bytes(STEP.levels(upgrades + 1)) > 1e9 * available_gb


def test_no_block_exceeds_the_most_level_and_too_little_memory_gives_none():
    assert STEP.levels_within(1e12, most="qkv") == ["qkv"] * LAYERS
    assert STEP.levels_within(70e9) is None
