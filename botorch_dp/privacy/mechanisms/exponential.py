"""Selection of one of many candidates by private scores.

References:
    .. [McSherry2007mechanism] F. McSherry and K. Talwar. Mechanism Design via
        Differential Privacy. FOCS 2007.
    .. [Dwork2014foundations] C. Dwork and A. Roth. The Algorithmic Foundations of
        Differential Privacy. 2014. Theorem 3.10.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from botorch_dp._validation import check_private_tensor
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.privacy.events import ExponentialEvent, PrivacyEvent
from botorch_dp.privacy.guarantees import Guarantee
from botorch_dp.privacy.mechanisms.base import CalibratedMechanism
from botorch_dp.privacy.noise import SecureNoise

# Candidates scored at a time: 8 MB of doubles a row.
_CHUNK = 1 << 20


class ExponentialMechanism(CalibratedMechanism):
    """Chooses one of finitely many candidates, better ones exponentially more often.

    The probability of a candidate is proportional to exp(epsilon * score / (2 Delta)),
    or to exp(epsilon * score / Delta) if the score is monotone
    [McSherry2007mechanism]_. The choice is the largest score after Gumbel noise, so
    nothing is exponentiated.

    :meth:`release` takes a ``batch_shape x m`` tensor of scores, where higher is
    better, or an iterable of such tensors: consecutive chunks of the candidates, which
    need not fit in memory together. It returns a ``batch_shape`` tensor of indices.
    Each batch element is a separate choice and is charged. If a score is not finite,
    which no finite sensitivity allows, the choice is uniform. Only the first chunk of
    an iterator is checked before the charge.

    Args:
        guarantee: The guarantee that one choice has to meet; usually ``PureDP``.
        sensitivity: The largest difference between neighbouring data sets in the score
            of any candidate.
        monotone: Whether one record can only raise all scores or only lower all scores.
            This is true of counts when a record is added or removed, but not when it is
            replaced.
        adjacency: The neighbouring data sets for which the sensitivity is stated.
        generator: A seeded generator for the noise, for experiments only.
        secure: Whether to draw exact Gumbel noise. It needs all candidates in memory.
        unit: What neighbouring data sets differ in.

    Example:
        >>> from botorch_dp.privacy import Ledger, PureDP
        >>> mechanism = ExponentialMechanism(PureDP(epsilon=10.0), sensitivity=0.01)
        >>> scores = torch.tensor([0.1, 0.9, 0.3])
        >>> int(mechanism.release(scores, ledger=Ledger()))
        1
    """

    name = "exponential"
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

    def event(self, size: int = 1) -> PrivacyEvent:
        """Return the cost of one choice, which does not depend on ``size``."""
        del size
        return ExponentialEvent(self.epsilon)

    def _check(self, private_value: Any) -> tuple[Iterator[Tensor], Tensor]:
        chunks = _score_chunks(private_value)
        first = next(chunks, None)
        if first is None:
            raise InvalidArgumentError(
                "private_value must contain at least one chunk of scores, got none."
            )
        return _same_batch_shape(first, chunks), first

    def _draw(self, private_value: Iterable[Tensor]) -> Tensor:
        return self.noise_source.noisy_argmax(private_value, self.scale)


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
