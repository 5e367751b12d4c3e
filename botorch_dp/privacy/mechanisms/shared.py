r"""A Gaussian release without a trusted server: each party adds a share of the noise.

A protocol for secure aggregation computes the sum of integers modulo :math:`2^{64}`,
and shows nothing else. So every party rounds its clipped row to a grid, adds a normal
number that is rounded to the same grid, and gives the result to the protocol. The sum
of at least H honest shares has the noise that protects every party.

**Rounded shares are as good as one Gaussian.** In units of the grid, let each share be
N(0, s^2) rounded to a whole number. The sum of H such shares has the distribution of
:math:`N(0, H s^2)` plus H - 1 uniform numbers, rounded, up to a total variation of less
than :math:`10^{-10^6}` for each entry, because the grid is 1,024 times finer than a
share. Uniform noise and rounding are post-processing. Rows are multiples of the grid
already, so rounding does not depend on them. The proof is in
``docs/theory/shared_noise.md``.

**Sampling** is done by every party: with probability 1 - q it gives its noise alone.
Nobody else sees which it was.

References:
    .. [Bonawitz2017secure] K. Bonawitz et al. Practical Secure Aggregation for
        Privacy-Preserving Machine Learning. CCS 2017.
    .. [Kairouz2021distributed] P. Kairouz, Z. Liu and T. Steinke. The Distributed
        Discrete Gaussian Mechanism for Federated Learning with Secure Aggregation.
        ICML 2021. Does the same with another noise, and an approximation.
"""

import math
from typing import Any

import torch
from torch import Tensor

from botorch_dp._validation import (
    check_clip_norm,
    check_count,
    check_positive,
    check_private_tensor,
    check_probability,
)
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.privacy.accountant import Chargeable
from botorch_dp.privacy.clipping import clip_rows
from botorch_dp.privacy.events import PoissonGaussianEvent, PrivacyEvent
from botorch_dp.privacy.mechanisms.base import Mechanism

# The grid is this many powers of two finer than the standard deviation of a share.
_FINENESS = 10
# A row has at most this many steps, so that sums of 2^20 rows do not wrap around.
_MOST_STEPS = 2.0**40


class SharedGaussianMechanism(Mechanism):
    r"""Releases the sum of all parties' clipped rows, with shares of noise from each.

    :meth:`release` plays all parties in one process, for simulations. In a deployment,
    :meth:`charge` the ledger first, let each party give its :meth:`shares` to
    the secure sum, and :meth:`decode` the sum. A party must give its shares of a
    release once: if it repeats them for another sum, the difference of both sums has
    less noise.

    Args:
        noise_multiplier: The ratio z of the noise of the honest shares together to the
            sensitivity.
        clip_norm: The L2 norm to which every row is clipped.
        num_entries: The number d of entries of a row.
        num_honest: The number H of parties that surely add their share and tell nobody.
        sampling_rate: The probability q that a party gives its row, and not only noise.
        generator: A seeded generator, for experiments only.
        unit: What a row is: ``"record"``, ``"person"``, ``"user"`` or ``"agent"``.

    Example:
        >>> from botorch_dp.privacy import Ledger
        >>> mechanism = SharedGaussianMechanism(
        ...     noise_multiplier=1.0, clip_norm=1.0, num_entries=2, num_honest=60
        ... )
        >>> ledger = Ledger()
        >>> mechanism.release(torch.ones(100, 2), ledger=ledger).shape
        torch.Size([2])
        >>> round(ledger.spent(delta=1e-5), 2)
        4.38
        >>> shares = mechanism.shares(torch.ones(100, 2))  # what each party gives
        >>> mechanism.decode(shares.sum(dim=0)).shape
        torch.Size([2])
    """

    name = "shared_gaussian"
    _release_dims = 2

    def __init__(
        self,
        *,
        noise_multiplier: float,
        clip_norm: float,
        num_entries: int,
        num_honest: int,
        sampling_rate: float = 1.0,
        generator: torch.Generator | None = None,
        unit: str = "agent",
    ) -> None:
        super().__init__(adjacency="zero_out", generator=generator, unit=unit)
        self.noise_multiplier = check_positive("noise_multiplier", noise_multiplier)
        self.clip_norm = check_clip_norm("clip_norm", clip_norm)
        self.num_entries = check_count("num_entries", num_entries)
        self.num_honest = check_count("num_honest", num_honest)
        if sampling_rate != 1.0:
            check_probability("sampling_rate", sampling_rate)
        self.sampling_rate = float(sampling_rate)
        share = noise_multiplier * clip_norm / math.sqrt(num_honest)
        #: The distance of neighbouring points of the grid.
        self.step = 2.0 ** (math.floor(math.log2(share)) - _FINENESS)
        if clip_norm / self.step > _MOST_STEPS:
            raise InvalidArgumentError(
                "noise_multiplier is too small for sums of whole numbers, got "
                f"{noise_multiplier}: the grid would have more than 2^40 steps."
            )
        #: The largest norm of a row after it was rounded to the grid.
        self.sensitivity = clip_norm + self.step * math.sqrt(num_entries) / 2
        #: The standard deviation of the noise of ``num_honest`` shares.
        self.noise_std = noise_multiplier * self.sensitivity

    @property
    def share_std(self) -> float:
        """The standard deviation of the noise in one share."""
        return self.noise_std / math.sqrt(self.num_honest)

    def event(self, size: int = 1) -> PrivacyEvent:
        """Return the cost of one release, which does not depend on ``size``."""
        del size
        return PoissonGaussianEvent(self.noise_multiplier, self.sampling_rate)

    def charge(self, ledger: Chargeable) -> None:
        """Charge a ledger for one sum, before the parties give their shares."""
        self._charge(ledger, self.event(), 1, torch.device("cpu"))

    def shares(self, private_rows: Tensor) -> Tensor:
        """Return what each party gives to the secure sum: private, and not charged.

        Args:
            private_rows: A ``... x n x d`` tensor of float32 or float64, a row for each
                party. A row that is not finite counts as zero.

        Returns:
            A tensor of the same shape and of whole numbers (int64), to be added modulo
            2^64, as torch and numpy do.
        """
        return self._with_noise(self._clipped("private_rows", private_rows))

    def decode(self, total: Tensor) -> Tensor:
        """Return the noisy sum of rows from the sum of shares modulo 2^64."""
        return total.double() * self.step

    def _check(self, private_value: Any) -> tuple[Tensor, Tensor]:
        clipped = self._clipped("private_value", private_value)
        if clipped.shape[-2] < self.num_honest:
            raise InvalidArgumentError(
                f"private_value must have at least num_honest={self.num_honest} rows, "
                f"which add enough noise, got {clipped.shape[-2]}: nothing is released."
            )
        return clipped, clipped

    def _draw(self, private_value: Tensor) -> Tensor:
        total = self._with_noise(private_value).sum(dim=-2)
        return self.decode(total).to(private_value.dtype)

    def _clipped(self, name: str, private_rows: Any) -> Tensor:
        check_private_tensor(name, private_rows, min_dim=2)
        if private_rows.shape[-1] != self.num_entries:
            raise InvalidArgumentError(
                f"{name} must have num_entries={self.num_entries} columns, got "
                f"{private_rows.shape[-1]}."
            )
        return clip_rows(private_rows, self.clip_norm)

    def _with_noise(self, clipped: Tensor) -> Tensor:
        rows, source = clipped.double(), self.noise_source
        given = source.poisson_sample(
            rows.shape[:-1], self.sampling_rate, rows.device
        ).unsqueeze(-1)
        steps = torch.where(given, (rows / self.step).round(), 0.0)
        noise = source.add_gaussian(torch.zeros_like(rows), self.share_std / self.step)
        return steps.long() + noise.round().long()
