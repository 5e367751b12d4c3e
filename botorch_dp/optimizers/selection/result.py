"""What a selection releases."""

from dataclasses import dataclass, field
from typing import Any

from botorch_dp.privacy import Certificate
from botorch_dp.privacy.report import result_card


@dataclass(frozen=True)
class SelectionResult:
    """The best run, and nothing about the others.

    Attributes:
        x: The candidate of the best run. If no run was made, the default.
        model: What the best run returned beside its score; None if there is nothing.
        score: The score of the best run, which is one of its private releases and
            paid for. It is the largest of several noisy scores, so on average it is
            too high. None if no run was made.
        certificate: What is guaranteed, to whom, and under which assumptions.
    """

    x: Any
    model: Any = field(repr=False)
    score: float | None
    certificate: Certificate = field(repr=False)

    def _repr_html_(self) -> str:
        """Return what was selected and the certificate, for notebooks."""
        score = "no run was made" if self.score is None else f"{self.score:.6g}"
        rows = [("x", str(self.x)), ("score", score)]
        return result_card("Selection", rows, self.certificate)
