"""The release of a score of candidates: its tally with noise, and what follows."""

import math

import numpy as np
import torch
from torch import Generator, Tensor

from botorch_dp.integrations.sklearn.candidate_scoring import CandidateScoring
from botorch_dp.privacy import (
    GaussianMechanism,
    Guarantee,
    LaplaceMechanism,
    PrivacyEvent,
    PureDP,
    SecureNoise,
)
from botorch_dp.privacy.account import RunAccount


class TallyRelease:
    """Releases the tally of one model, from which its score is computed.

    Noise is Laplace's under a ``PureDP`` and Gaussian otherwise. The score is a ratio
    of noisy counts, so that it is biased, and clipped to [0, 1].

    Args:
        scoring: The score, with the classes of the training targets.
        guarantee: The guarantee of the release.
        account: The account that is charged, which says who is protected.
        num_records: The number n of private records, or of persons.
        generator: A seeded generator for the noise, or None.
        secure: Whether to draw exact discrete noise.

    Attributes:
        account: The account that is charged.
        loss: One minus the released score; None until it is released.
        noise_std: The standard deviation of its noise, as the released tally suggests.
    """

    def __init__(
        self,
        scoring: CandidateScoring,
        guarantee: Guarantee,
        *,
        account: RunAccount,
        num_records: int,
        generator: Generator | None,
        secure: bool | SecureNoise = False,
    ) -> None:
        self._scoring, self._num_records = scoring, num_records
        self.account = account
        self.loss: float | None = None
        self.noise_std = math.nan
        self._units = scoring.units(num_records)
        is_pure = isinstance(guarantee, PureDP)
        kind = LaplaceMechanism if is_pure else GaussianMechanism
        self._mechanism: LaplaceMechanism | GaussianMechanism = kind(
            guarantee,
            sensitivity=scoring.tally_sensitivity(num_records, 1 if is_pure else 2),
            generator=generator,
            secure=secure,
            unit=account.unit,
        )

    def planned_releases(self) -> list[tuple[PrivacyEvent, int]]:
        """Return the cost."""
        return [(self._mechanism.event(len(self._units)), 1)]

    def release(self, losses: Tensor) -> None:
        """Charge the account and release the score of a ``2 x 1`` private tally."""
        private_tally = losses.squeeze(-1).numpy()[: len(self._units)]
        scaled = torch.from_numpy(private_tally / self._units)
        released = self._mechanism.release(scaled, ledger=self.account)
        tally, n = (released.numpy() * self._units).tolist(), self._num_records
        self.loss = 1.0 - self._scoring.score_of(tally, n)
        slopes = self._scoring.slopes(tally, n) * self._units
        self.noise_std = self._scaled_noise_std * float(np.linalg.norm(slopes))

    @property
    def _scaled_noise_std(self) -> float:
        if isinstance(self._mechanism, GaussianMechanism):
            return self._mechanism.noise_std
        return math.sqrt(2.0) * self._mechanism.scale
