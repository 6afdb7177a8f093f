import pandas as pd
import pytest

from pipeline.formulas.faster_products import linear_flops, predicted_gain
from pipeline.formulas.sizes import SIZES
from pipeline.stages.levers.report_fp8 import predicted_ratios

from ..frames import failed, frame_of, timed

CELL = {"size": "2.7B", "context_length": 1024, "setting_batch_size": 4}
CEILINGS = pd.DataFrame({"dtype": ["bf16", "bf16", "fp8", None], "tflops_per_s": [600.0, 800.0, 1500.0, None]})


def predicted(*rows, ceilings=CEILINGS):
    frame = frame_of("levers", [row | CELL for row in rows])
    return predicted_ratios(frame, ceilings).set_axis(frame["levers"]).dropna().to_dict()


def test_fp8_is_predicted_of_the_same_step_without_it_and_of_what_that_gained():
    found = predicted(
        timed(400.0, levers="eager"), timed(200.0, levers="fused+compile"), timed(190.0, levers="fused+compile+fp8")
    )
    gain = predicted_gain(linear_flops(SIZES["2.7B"], 4, 1024), 200.0, 800.0, 1500.0)
    assert found == {"fused+compile+fp8": pytest.approx(2.0 * gain)}
    assert gain > 1


def test_nothing_is_predicted_without_that_step_or_a_ceiling():
    fp8, eager = timed(190.0, levers="fused+compile+fp8_rowwise"), timed(400.0, levers="eager")
    assert predicted(eager, fp8) == {}
    assert predicted(eager, failed(levers="fused+compile"), fp8) == {}
    base = timed(200.0, levers="fused+compile")
    assert predicted(eager, base, fp8, ceilings=CEILINGS[CEILINGS["dtype"] == "bf16"]) == {}
    assert set(predicted(eager, base, fp8)) == {"fused+compile+fp8_rowwise"}
