"""The distribution of the number of runs of a selection: what all of them share."""

from abc import ABC, abstractmethod
from dataclasses import fields
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from botorch_dp._validation import check_instance
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.privacy.curves import FloatArray
from botorch_dp.privacy.noise import NoiseSource

# Within this factor of the largest tail, a draw of 53 bits chooses K with a relative
# error of 2^-33. Smaller tails get a draw of their own.
_BLOCK = 2.0**-20


class Count(ABC):
    """The distribution of the number K of runs.

    Attributes:
        mean: The expected number of runs.
    """

    mean: float

    @property
    @abstractmethod
    def least(self) -> int:
        """The smallest number of runs that has a positive probability."""

    @property
    @abstractmethod
    def most(self) -> int:
        """A number of runs that is practically never exceeded.

        The runs beyond change the slope of the generating function by less than the
        rounding errors of doubles.
        """

    @abstractmethod
    def log_generating(self, z: FloatArray) -> FloatArray:
        """Return the logarithm of E[z^K] for z in [0, 1]."""

    @abstractmethod
    def log_slope(self, z: FloatArray) -> FloatArray:
        """Return the logarithm of the derivative E[K z^(K-1)] for z in [0, 1]."""

    @abstractmethod
    def probabilities(self, most: int) -> FloatArray:
        """Return P(K = 0), ..., P(K = most)."""

    def draw(self, source: NoiseSource) -> int:
        """Draw K.

        Every value up to ``most`` has its probability up to a tiny *relative* error: no
        tail is cut off, because values that are too rare for one uniform number get
        another one. A relative error of the probabilities changes the privacy loss by
        no more than this error, even where the guarantee has no delta.

        Args:
            source: The noise source.
        """
        tails = _tails(self)
        start = 0
        while True:
            uniform = source.uniform(torch.Size([1]), torch.device("cpu")).item()
            level = uniform * tails[start]  # P(K >= k | K >= start) = P(level < tail)
            stop = int(np.searchsorted(-tails, -_BLOCK * tails[start], side="right"))
            if stop == len(tails) or level >= tails[stop]:
                return int(np.searchsorted(-tails, -level, side="left")) - 1
            start = stop

    def to_dict(self) -> dict[str, Any]:
        """Return the distribution as plain numbers, for JSON."""
        state: dict[str, Any] = {"type": type(self).__name__}
        for item in fields(self):  # type: ignore[arg-type]
            value = getattr(self, item.name)
            state[item.name] = value.to_dict() if isinstance(value, Count) else value
        return state

    @staticmethod
    def from_dict(state: dict[str, Any]) -> "Count":
        """Return the distribution that ``to_dict`` described."""
        check_instance("state", state, dict)
        values = {key: value for key, value in state.items() if key != "type"}
        kinds = {
            kind.__name__: kind
            for kind in Count.__subclasses__()
            if kind.__module__.startswith(__name__.rpartition(".")[0])
        }
        kind = kinds.get(state.get("type", ""))
        if kind is None or set(values) != {item.name for item in fields(kind)}:  # type: ignore[arg-type]
            raise InvalidArgumentError(
                f"state must describe one of {', '.join(kinds)}, got {state!r}."
            )
        if "count" in values:
            values["count"] = Count.from_dict(values["count"])
        return kind(**values)


@lru_cache(maxsize=8)
def _tails(count: Count) -> FloatArray:
    """Return P(K >= 0), ..., P(K >= most), with all digits of the small ones."""
    return np.cumsum(count.probabilities(count.most)[::-1])[::-1]
