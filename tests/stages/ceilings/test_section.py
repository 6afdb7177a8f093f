import re

import pytest

from pipeline.stages.ceilings.cell import DTYPES
from pipeline.stages.ceilings.report import section, selection

from ..sections import (
    built,
    drawn_figures,
    gaps,
    linked_figures,
    render,
)

ALL = ("NVIDIA H200", "AMD EPYC")
BUILD = built(section.build, "ceilings")


@pytest.fixture(scope="module")
def rendered(make_rows, tmp_path_factory):
    return render(BUILD, {name: make_rows(name) for name in ALL}, tmp_path_factory)


@pytest.mark.parametrize("name", ALL)
def test_the_section_is_short_whole_and_shows_its_figure(rendered, name):
    _, text, folder = rendered[name]
    assert gaps(text) == []
    assert len(text.splitlines()) < 35
    assert len(re.findall(r"^\|", text, re.MULTILINE)) - 2 <= 12
    assert linked_figures(text, "ceilings") == drawn_figures(folder) == {"rates"}


def test_the_answer_of_a_gpu_is_beside_its_data_sheet(rendered):
    text = rendered["NVIDIA H200"].text
    assert re.search(
        r"\*\*bf16 products reach 7\d\d TFLOP/s \(7\d% of the data sheet\), copies in memory 4\.\d+ TB/s", text
    )
    assert re.search(r"One eager operator costs the host 4\.\d+ µs\. On an idle GPU it takes 1\d\.\d µs", text)
    assert "| GPU to GPU" not in text  # there is one


def test_a_cpu_s_answer_is_its_faster_data_type_without_a_data_sheet(rendered):
    text = rendered["AMD EPYC"].text
    assert re.search(
        r"\*\*fp32 products reach 1[12]\d GFLOP/s, copies in memory 1[01].\d GB/s\. One eager operator", text
    )
    assert "of the data sheet" not in text
    assert "GPU" not in text.replace(section.METHOD, "")


def test_the_best_product_of_a_data_type_is_of_whichever_side_is_fastest(make_rows):
    rows = make_rows("NVIDIA H200")
    rows.loc[(rows["dtype"] == "bf16") & (rows["side"] == 4096), "tflops_per_s"] = 900.0
    best = selection.best_products(rows)
    assert list(best["dtype"]) == list(DTYPES)
    assert best.iloc[0]["side"] == 4096
    assert selection.best_trained(rows)["tflops_per_s"] == 900.0


def test_matrices_are_large_enough_from_where_their_rate_is_near_the_best(make_rows, rendered):
    rows, text = make_rows("NVIDIA H200"), rendered["NVIDIA H200"].text
    assert "![bf16 products need matrices of 8,192 to come within 10% of their best rate]" in text
    rates = rows.loc[rows["dtype"] == "bf16"].set_index("side")["tflops_per_s"]
    rows.loc[(rows["dtype"] == "bf16") & (rows["side"] == 4096), "tflops_per_s"] = 0.95 * rates[8192]
    rows.loc[(rows["dtype"] == "bf16") & (rows["side"] == 16384), "tflops_per_s"] = 0.88 * rates[8192]
    assert section.build(rows).parts[0].title == (
        "bf16 products come within 10% of their best rate with matrices of 4,096 and 8,192, and reach 88% of it with "
        "16,384"
    )


def test_a_power_limit_that_slows_the_largest_product_down_is_told_with_both_clocks(make_rows):
    rows = make_rows("NVIDIA H200")
    largest = (rows["dtype"] == "bf16") & (rows["side"] == 16384)
    rows.loc[largest, ["tflops_per_s", "mean_sm_clock_mhz"]] = [612.0, 1622.4]
    assert "power limit" not in section.build(rows).answer
    rows.loc[largest, "power_capped"] = True
    assert (
        " With matrices of 16,384 a power limit lowers the clock from 1,900 to 1,622 MHz and the rate to 612 TFLOP/s. "
    ) in section.build(rows).answer
    rows.loc[largest, "tflops_per_s"] = 812.0
    assert "power limit" not in section.build(rows).answer
