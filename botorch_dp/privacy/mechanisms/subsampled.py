"""Gaussian releases of a random sample of the records.

References:
    .. [Mironov2019sampled] I. Mironov, K. Talwar and L. Zhang. Renyi Differential
        Privacy of the Sampled Gaussian Mechanism. 2019.
    .. [Wang2019subsampled] Y.-X. Wang, B. Balle and S. P. Kasiviswanathan. Subsampled
        Renyi Differential Privacy and Analytical Moments Accountant. AISTATS 2019.
"""

import math
from typing import Any

import torch
from torch import Tensor

from botorch_dp._validation import (
    check_choice,
    check_clip_norm,
    check_count,
    check_positive,
    check_private_tensor,
)
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.privacy.accountant import PrivacyAccountant
from botorch_dp.privacy.clipping import clip_rows
from botorch_dp.privacy.events import (
    FixedSizeGaussianEvent,
    PoissonGaussianEvent,
    PrivacyEvent,
)
from botorch_dp.privacy.guarantees import Guarantee
from botorch_dp.privacy.mechanisms.base import Mechanism
from botorch_dp.privacy.noise import SecureNoise


class SubsampledGaussianMechanism(Mechanism):
    """Releases the sum of a random sample of clipped records, with Gaussian noise.

    Sampling amplifies privacy as long as nobody learns who was sampled. The release is
    the sum, not the mean: divide it by the *expected* number of sampled records.

    * ``sampling_rate``: a Poisson sample, which contains each record independently with
      this probability. Neighbours differ in a record that is absent on one side, so the
      sensitivity is ``clip_norm`` [Mironov2019sampled]_.
    * ``sample_size`` and ``num_records``: a subset of fixed size, without replacement.
      Neighbours differ in a replaced record, so the sensitivity is twice ``clip_norm``.

    :meth:`release` takes a ``batch_shape x n x d`` tensor with one row for each record
    and returns a ``batch_shape x d`` tensor. Each batch element is a separate release
    with its own sample, and is charged.

    Args:
        noise_multiplier: The standard deviation of the noise over the sensitivity.
        clip_norm: The L2 norm to which every record is clipped.
        sampling_rate: The probability of each record, above zero and at most one.
        sample_size: The size of the subset.
        num_records: The number of records, which is then public.
        adjacency: ``"zero_out"`` (default) or ``"add_or_remove_one"`` for a Poisson
            sample; ``"replace_one"`` for a subset of fixed size.
        generator: A seeded generator for the noise and the sample, for experiments
            only.
        secure: Must be False; no bound is known for sampled discrete noise.
        unit: What a row is: ``"record"``, ``"person"``, ``"user"`` or ``"agent"``.

    Example:
        >>> from botorch_dp.privacy import Ledger
        >>> mechanism = SubsampledGaussianMechanism(
        ...     noise_multiplier=1.0, clip_norm=1.0, sampling_rate=0.1
        ... )
        >>> ledger = Ledger()
        >>> mechanism.release(torch.ones(1000, 2), ledger=ledger).shape
        torch.Size([2])
        >>> round(ledger.spent(delta=1e-5), 2)
        1.68
    """

    name = "subsampled_gaussian"
    _release_dims = 2

    def __init__(
        self,
        *,
        noise_multiplier: float,
        clip_norm: float,
        sampling_rate: float | None = None,
        sample_size: int | None = None,
        num_records: int | None = None,
        adjacency: str | None = None,
        generator: torch.Generator | None = None,
        secure: bool | SecureNoise = False,
        unit: str = "record",
    ) -> None:
        if secure:
            raise InvalidArgumentError(
                "secure must be False: no bound is known for a sampled discrete "
                f"Gaussian, got secure={secure!r}."
            )
        poisson = sampling_rate is not None
        if poisson == (sample_size is not None) or poisson == (num_records is not None):
            raise InvalidArgumentError(
                "give either sampling_rate, or sample_size and num_records; got "
                f"sampling_rate={sampling_rate!r}, sample_size={sample_size!r}, "
                f"num_records={num_records!r}."
            )
        possible = ("zero_out", "add_or_remove_one") if poisson else ("replace_one",)
        adjacency = check_choice("adjacency", adjacency or possible[0], possible)
        super().__init__(adjacency=adjacency, generator=generator, unit=unit)
        self.noise_multiplier = check_positive("noise_multiplier", noise_multiplier)
        self.clip_norm = check_clip_norm("clip_norm", clip_norm)
        self.sensitivity = self.clip_norm if poisson else 2 * self.clip_norm
        self.noise_std = self.noise_multiplier * self.sensitivity
        self._event: PoissonGaussianEvent | FixedSizeGaussianEvent
        if sampling_rate is not None:
            self._event = PoissonGaussianEvent(self.noise_multiplier, sampling_rate)
        else:
            self._event = FixedSizeGaussianEvent(
                self.noise_multiplier,
                check_count("sample_size", sample_size or 0),
                check_count("num_records", num_records or 0),
            )

    def event(self, size: int = 1) -> PrivacyEvent:
        """Return the cost of one release, which does not depend on ``size``."""
        del size
        return self._event

    def _check(self, private_value: Any) -> tuple[Tensor, Tensor]:
        check_private_tensor("private_value", private_value, min_dim=2)
        num_rows = private_value.shape[-2]
        expected = getattr(self._event, "num_records", num_rows)
        if num_rows != expected:
            raise InvalidArgumentError(
                f"private_value must have num_records={expected} rows, got {num_rows}."
            )
        # Clipping may refuse clip_norm for this dtype, so it comes before the charge.
        clipped = clip_rows(private_value, self.clip_norm)
        return clipped, clipped

    def _draw(self, private_value: Tensor) -> Tensor:
        shape, device = private_value.shape[:-1], private_value.device  # ... x n
        if isinstance(self._event, FixedSizeGaussianEvent):
            sample = self.noise_source.fixed_size_sample(
                shape, self._event.sample_size, device
            )
            chosen = private_value.take_along_dim(sample.unsqueeze(-1), dim=-2)
            total = chosen.double().sum(dim=-2)
        else:
            mask = self.noise_source.poisson_sample(
                shape, self._event.sampling_rate, device
            )
            total = (mask.double().unsqueeze(-2) @ private_value.double()).squeeze(-2)
        noisy = self.noise_source.add_gaussian(total, self.noise_std)
        return noisy.to(private_value.dtype)


def noise_multiplier_for(
    guarantee: Guarantee,
    *,
    sampling_rate: float,
    num_releases: int,
    beside: PrivacyAccountant | None = None,
    tolerance: float = 0.01,
) -> float:
    """Return the least noise at which that many Poisson-sampled releases meet a budget.

    The result is rounded up, by exact accounting.

    Args:
        guarantee: The budget of all releases together, including those of ``beside``.
        sampling_rate: The probability that a record, or an agent, is in a sample.
        num_releases: The number of releases.
        beside: Other releases under the same guarantee; none by default.
        tolerance: The largest relative distance of the result above the least noise.
    """
    check_positive("tolerance", tolerance)
    others = PrivacyAccountant() if beside is None else beside

    def fits(z: float) -> bool:
        event = PoissonGaussianEvent(z, sampling_rate)
        return others.plus(event, num_releases).within(guarantee)

    high = 1.0
    while not fits(high):
        high *= 2.0
        if high > 1e6:
            raise InvalidArgumentError(
                f"guarantee cannot be met by sampled Gaussian noise, got {guarantee!r}."
            )
    low = high / 2.0
    while high > 1e-3 and fits(low):
        low, high = low / 2.0, low
    while high / low > 1 + tolerance:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high
