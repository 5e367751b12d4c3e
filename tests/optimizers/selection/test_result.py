"""The result shows what was released."""

from botorch_dp.optimizers.selection.result import SelectionResult
from botorch_dp.privacy import Certificate


def test_repr_has_no_model():
    result = SelectionResult(
        0.1, "a large model", 0.5, Certificate.not_private("nothing was trained")
    )
    assert repr(result) == "SelectionResult(x=0.1, score=0.5)"
