"""What all mechanisms that choose one of many candidates by private scores share."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from botorch_dp._validation import check_private_tensor
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.privacy.guarantees import Guarantee
from botorch_dp.privacy.mechanisms.base import CalibratedMechanism
from botorch_dp.privacy.noise import SecureNoise

# Candidates scored at a time: 8 MB of doubles a row.
_CHUNK = 1 << 20


class ChoiceMechanism(CalibratedMechanism):
    """Chooses one of finitely many candidates by their scores and noise.

    Subclasses give :meth:`event`, and ``_draw`` with noise of size ``scale``, which is
    (2 or 1) * sensitivity / epsilon: 2 in general, 1 if the score is monotone.

    Args:
        guarantee: The guarantee that one choice has to meet; usually ``PureDP``.
        sensitivity: The largest difference between neighbouring data sets in the score
            of any candidate.
        monotone: Whether one record can only raise all scores or only lower all scores.
        adjacency: The neighbouring data sets for which the sensitivity is stated.
        generator: A seeded generator for the noise, for experiments only.
        secure: Whether to draw exact noise. It needs all candidates in memory.
        unit: What neighbouring data sets differ in.
    """

    _release_dims = 1

    def __init__(
        self,
        guarantee: Guarantee,
        *,
        sensitivity: float,
        monotone: bool = False,
        adjacency: str = "replace_one",
        generator: torch.Generator | None = None,
        secure: bool | SecureNoise = False,
        unit: str = "record",
    ) -> None:
        if monotone and adjacency == "replace_one":
            raise InvalidArgumentError(
                "monotone=True does not fit adjacency='replace_one': replacing a "
                "record can raise some scores and lower others."
            )
        self.monotone = monotone
        super().__init__(
            guarantee,
            sensitivity=sensitivity,
            adjacency=adjacency,
            generator=generator,
            secure=secure,
            unit=unit,
        )

    def _calibrate(self) -> None:
        self.epsilon = self.guarantee.to_pure().epsilon
        self.scale = (1 if self.monotone else 2) * self.sensitivity / self.epsilon

    def _check(self, private_value: Any) -> tuple[Iterator[Tensor], Tensor]:
        chunks = _score_chunks(private_value)
        first = next(chunks, None)
        if first is None:
            raise InvalidArgumentError(
                "private_value must contain at least one chunk of scores, got none."
            )
        return _same_batch_shape(first, chunks), first


def _score_chunks(scores: Tensor | Iterable[Tensor]) -> Iterator[Tensor]:
    """Check the scores' shapes and yield them in pieces of bounded size."""
    if isinstance(scores, Tensor):
        check_private_tensor("private_value", scores, min_dim=1)
        scores = scores.detach().split(max(1, _CHUNK // scores.shape[:-1].numel()), -1)
    elif isinstance(scores, list | tuple):
        for chunk in scores:  # all of them before anything is charged
            check_private_tensor("private_value", chunk, min_dim=1)
            _check_batch_shape(scores[0], chunk)
    for chunk in scores:
        yield check_private_tensor("private_value", chunk, min_dim=1).detach()


def _same_batch_shape(first: Tensor, rest: Iterator[Tensor]) -> Iterator[Tensor]:
    yield first
    for chunk in rest:
        _check_batch_shape(first, chunk)
        yield chunk


def _check_batch_shape(first: Tensor, chunk: Tensor) -> None:
    if chunk.shape[:-1] != first.shape[:-1]:
        raise InvalidArgumentError(
            "private_value must be chunks of scores of one batch shape, "
            f"{tuple(first.shape[:-1])}, got {tuple(chunk.shape[:-1])}."
        )
