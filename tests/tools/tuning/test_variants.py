import sys
from pathlib import Path

import pytest

from pipeline.attention.triton.kernel_sets import has_gluon

if not has_gluon():
    pytest.skip("Triton has no Gluon", allow_module_level=True)

from pipeline.attention.triton.gluon import backward, steps
from tools.tuning import variants


def test_a_variant_is_the_kernel_in_use_with_its_own_steps(tmp_path):
    changed = tmp_path / "mine.py"
    changed.write_text(Path(steps.__file__).read_text().replace("STAGES = gl.constexpr(2)", "STAGES = gl.constexpr(3)"))
    kernel = variants.kernel_with(changed)
    found, in_use = (each.fn.__globals__ for each in (kernel, backward.hopper_backward_kernel))
    assert (found["STAGES"].value, in_use["STAGES"].value) == (3, 2)
    assert found["_step"].fn.__globals__["step_of_one"].fn.__code__.co_filename == str(changed)
    assert sys.modules[steps.__name__] is steps


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["1,16,1024,64", "--steps", "nowhere.py"], "there is no nowhere.py"),
        (["1,16,1024,64", "--steps", *[steps.__file__] * 2], "files must have different names, got steps, steps"),
        (
            ["1,16,1024,256", "--steps", steps.__file__],
            "head_dim must be one that this kernel serves (33 to 128), got 256",
        ),
    ],
)
def test_bad_input_is_refused(monkeypatch, capsys, words, why):
    monkeypatch.setattr(sys, "argv", ["variants", *words])
    with pytest.raises(SystemExit) as ended:
        variants.main()
    assert why in capsys.readouterr().err + str(ended.value)
