r"""Selection: choosing one of many candidates by private scores.

References:
    .. [McSherry2007mechanism] F. McSherry and K. Talwar. Mechanism Design via
        Differential Privacy. FOCS 2007.
    .. [Dwork2014foundations] C. Dwork and A. Roth. The Algorithmic Foundations of
        Differential Privacy. 2014. Theorem 3.10.
"""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from botorch_dp._validation import check_private_tensor
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.privacy.events import ExponentialEvent, PrivacyEvent
from botorch_dp.privacy.guarantees import Guarantee
from botorch_dp.privacy.ledger import Chargeable
from botorch_dp.privacy.mechanisms.base import CalibratedMechanism
from botorch_dp.privacy.noise import SecureNoise

# Candidates scored at a time: 8 MB of doubles a row.
_CHUNK = 1 << 20


class ExponentialMechanism(CalibratedMechanism):
    r"""Chooses among finitely many candidates, better ones exponentially more often.

    The probability of a candidate is proportional to exp(epsilon * score / (2 Delta)),
    or to exp(epsilon * score / Delta) if the score is monotone
    [McSherry2007mechanism]_. Drawn by the largest score after Gumbel noise, so that
    nothing is exponentiated.

    Args:
        guarantee: What one choice has to meet; usually ``PureDP``.
        sensitivity: The most that the score of any candidate differs between
            neighbours.
        monotone: Whether one record can only raise all scores or only lower all scores:
            true of counts when a record is added or removed, not when it is replaced.
        adjacency: For which neighbours the sensitivity is stated.
        generator: Seeds the noise: for experiments only.
        secure: Exact Gumbel noise; then all candidates are held at once.
        unit: Whose data neighbouring data sets differ in.

    Example:
        >>> from botorch_dp.privacy import Ledger, PureDP
        >>> mechanism = ExponentialMechanism(PureDP(epsilon=10.0), sensitivity=0.01)
        >>> scores = torch.tensor([0.1, 0.9, 0.3])
        >>> int(mechanism.release(scores, ledger=Ledger()))
        1
    """

    name = "exponential"

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

    def event(self) -> PrivacyEvent:
        """Return what one choice costs."""
        return ExponentialEvent(self.epsilon)

    def release(
        self, private_scores: Tensor | Iterable[Tensor], *, ledger: Chargeable
    ) -> Tensor:
        """Charge the ledger, then return the index of the chosen candidate.

        Args:
            private_scores: A ``batch_shape x m`` tensor of float32 or float64, higher
                is better; or an iterable of such tensors, consecutive chunks of the
                candidates, which need not fit in memory together. Each batch element is
                a choice of its own and charged. If a score is not finite, which breaks
                the promise of a finite sensitivity, the choice is uniform. Of an
                iterator only the first chunk is checked before the charge.
            ledger: A ledger or an accountant, charged before any noise is drawn.

        Returns:
            A ``batch_shape`` tensor of indices, which may be published.

        Raises:
            BudgetExceededError: If the ledger's cap does not allow it.
        """
        chunks = _score_chunks(private_scores)
        first = next(chunks, None)
        if first is None:
            raise InvalidArgumentError(
                "private_scores must hold at least one chunk, got none."
            )
        batch_shape = first.shape[:-1]
        self._charge(ledger, self.event(), batch_shape.numel(), first.device)
        chunks = _same_batch_shape(first, chunks)
        return self.noise_source.noisy_argmax(chunks, self.scale)


def _score_chunks(scores: Tensor | Iterable[Tensor]) -> Iterator[Tensor]:
    """Check the scores' shapes and yield them in pieces of bounded size."""
    if isinstance(scores, Tensor):
        check_private_tensor("private_scores", scores, min_dim=1)
        scores = scores.detach().split(max(1, _CHUNK // scores.shape[:-1].numel()), -1)
    elif isinstance(scores, list | tuple):
        for chunk in scores:  # all of them before anything is charged
            check_private_tensor("private_scores", chunk, min_dim=1)
            _check_batch_shape(scores[0], chunk)
    for chunk in scores:
        yield check_private_tensor("private_scores", chunk, min_dim=1).detach()


def _same_batch_shape(first: Tensor, rest: Iterator[Tensor]) -> Iterator[Tensor]:
    yield first
    for chunk in rest:
        _check_batch_shape(first, chunk)
        yield chunk


def _check_batch_shape(first: Tensor, chunk: Tensor) -> None:
    if chunk.shape[:-1] != first.shape[:-1]:
        raise InvalidArgumentError(
            "private_scores must be chunks of one batch shape, "
            f"{tuple(first.shape[:-1])}, got {tuple(chunk.shape[:-1])}."
        )
