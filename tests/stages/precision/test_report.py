import pytest

from pipeline.stages.precision.cell import EXPERIMENTS
from pipeline.stages.precision.report import build

from ..frames import shown
from ..published import sound

OF_EXPERIMENT = dict(zip(EXPERIMENTS, ({"sums", "sums_table"}, {"dtypes"}, {"layer_norm"}, set()), strict=True))


@pytest.fixture
def rows():
    return sound("precision", "laptop")


def parts(rows):
    return shown(build(rows, {}))


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_a_cell_alone_has_its_parts_and_an_answer(rows, experiment):
    alone = rows[(rows["experiment"] == experiment) & (rows["device"] == "cpu")]
    assert set(parts(alone)) == OF_EXPERIMENT[experiment]
    assert build(alone, {}).answer


def test_both_roundings_add_up_to_the_error_and_mispredicted_sums_are_marked(rows):
    sums = parts(rows)["sums_table"].rows
    assert (sums["addend_error"] + sums["rounding_error"]).tolist() == pytest.approx(sums["error"].tolist(), abs=1e-9)
    assert set(sums["predicted"]) == {"yes"}
    curves = parts(rows)["sums"].rows
    assert curves.groupby(["steps", "accumulator"])["curve_sums"].last()[1000, "bf16"] == 4.0
    rows.loc[rows["accumulator"] == "bf16", "result"] = 9.9
    sums = parts(rows)["sums_table"].rows
    assert set(sums.loc[sums["predicted"] == "no", "accumulator"]) == {"bf16"}


def test_the_largest_layer_norm_input_is_the_last_one_that_loses_no_row(rows):
    of_fp16 = (rows["dtype"] == "fp16") & (rows["method"] == "in_format") & (rows["input"] == "normal")

    def largest():
        found = parts(rows)["layer_norm"].rows
        return found.loc[(found["dtype"] == "fp16") & (found["method"] == "in_format"), "up_to"].iloc[0]

    before = largest()
    rows.loc[of_fp16 & (rows["magnitude"] == before), "output_zero_share"] = 0.1
    assert largest() == before / 4  # the next smaller one measured


def test_all_data_types_seen_on_each_device_are_shown(rows):
    def seen(rows, part):
        found = parts(rows)["dtypes"].rows
        return found[found["part"] == part].set_index("where")["observed_dtype"]

    gpu = sound("precision")
    assert set(parts(gpu)["sums_table"].rows["device"]) == {"cuda"}
    on_both = seen(gpu, "layernorm output")
    assert on_both[["fp16 on cuda", "fp16 on cpu"]].tolist() == ["fp32", "fp16"]
    assert "fp16 on cuda" not in seen(rows, "layernorm output")
    first = rows[(rows["component"] == "gradients") & (rows["autocast_dtype"] == "fp16")].index[0]
    rows.loc[first, "observed_dtype"] = "bf16"
    assert seen(rows, "gradients")["fp16 on cpu"] == "bf16/fp32"
