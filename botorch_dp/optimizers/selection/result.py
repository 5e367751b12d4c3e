"""What a selection releases."""

from dataclasses import dataclass, field
from typing import Any

from botorch_dp.privacy import Certificate


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
