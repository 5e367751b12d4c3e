r"""Mechanisms: the only door from private tensors to what may be published.

All share one way to release. Parameters and shapes are checked, which may raise; the
cost is charged, which may raise; then noise is drawn. Values of private tensors are
never looked at by anything that raises, warns or logs. An entry that is not finite is
released as zero plus noise: what bounds the sensitivity (see
:mod:`botorch_dp.privacy.clipping`) leaves none.

References:
    .. [Dwork2014foundations] C. Dwork and A. Roth. The Algorithmic Foundations of
        Differential Privacy. 2014. Theorems 3.6 (Laplace) and 3.10 (exponential).
    .. [McSherry2007mechanism] F. McSherry and K. Talwar. Mechanism Design via
        Differential Privacy. FOCS 2007.
    .. [Mironov2019sampled] I. Mironov, K. Talwar and L. Zhang. Renyi Differential
        Privacy of the Sampled Gaussian Mechanism. 2019.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import ClassVar

import torch
from torch import Tensor

from botorch_dp._checks import (
    check_choice,
    check_count,
    check_positive,
    check_private_tensor,
)
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.privacy.calibration import (
    check_guarantee,
    gaussian_noise_std,
    laplace_scale,
    zcdp_noise_std,
)
from botorch_dp.privacy.clipping import clip_rows
from botorch_dp.privacy.events import (
    ADJACENCIES,
    ExponentialEvent,
    FixedSizeGaussianEvent,
    GaussianEvent,
    LaplaceEvent,
    PoissonGaussianEvent,
    PrivacyEvent,
    PureEvent,
    ZCDPEvent,
)
from botorch_dp.privacy.guarantees import Guarantee
from botorch_dp.privacy.ledger import Chargeable
from botorch_dp.privacy.noise import SecureNoise, make_noise_source

# Candidates scored at a time by the exponential mechanism: 8 MB of doubles a row.
_CHUNK = 1 << 20
# What a coarser grid of secure noise may add to the cost, which is charged.
_MOST_GRID_COST = 0.05


class Mechanism(ABC):
    """What all mechanisms share: a noise source, an adjacency, and how they charge.

    Args:
        adjacency: For which neighbouring data sets the sensitivity is stated:
            ``"replace_one"``, ``"zero_out"`` or ``"add_or_remove_one"``.
        generator: Seeds the noise: for experiments only.
        secure: True, or a :class:`SecureNoise`, for exact discrete noise.
    """

    name: ClassVar[str]

    def __init__(
        self,
        *,
        adjacency: str = "replace_one",
        generator: torch.Generator | None = None,
        secure: bool | SecureNoise = False,
    ) -> None:
        self.adjacency = check_choice("adjacency", adjacency, ADJACENCIES)
        self.noise_source = make_noise_source(generator, secure)

    def _charge(
        self, ledger: Chargeable, event: PrivacyEvent, count: int, device: torch.device
    ) -> None:
        """Record the cost. The last step that may raise before noise is drawn."""
        if not callable(getattr(ledger, "charge", None)):
            raise InvalidArgumentError(
                f"ledger must be a Ledger or a PrivacyAccountant, got {ledger!r}."
            )
        self.noise_source.check_device(device)
        ledger.charge(
            event,
            count=count,
            mechanism=self.name,
            adjacency=self.adjacency,
            noise=self.noise_source.name,
        )


class _AdditiveMechanism(Mechanism):
    """Adds independent noise to every entry of a tensor."""

    @abstractmethod
    def event(self, size: int) -> PrivacyEvent:
        """Return what releasing ``size`` numbers costs."""

    @abstractmethod
    def _add_noise(self, private_value: Tensor) -> Tensor: ...

    def release(
        self, private_value: Tensor, *, ledger: Chargeable, batch_dims: int = 0
    ) -> Tensor:
        """Charge the ledger, then return the value plus noise.

        Args:
            private_value: A tensor of float32 or float64 and any shape. With
                ``batch_dims=0`` all of it is one release: the sensitivity bounds the
                distance between whole tensors.
            ledger: A ledger or an accountant, charged before any noise is drawn.
            batch_dims: How many leading dimensions index separate releases, each of
                this sensitivity and each charged.

        Returns:
            A tensor of the same shape, dtype and device, which may be published.

        Raises:
            BudgetExceededError: If the ledger's cap does not allow it.
        """
        check_private_tensor("private_value", private_value)
        check_count("batch_dims", batch_dims, minimum=0)
        if batch_dims > private_value.dim():
            raise InvalidArgumentError(
                f"batch_dims must be at most {private_value.dim()}, the dimensions of "
                f"private_value, got {batch_dims!r}."
            )
        count = private_value.shape[:batch_dims].numel()
        event = self.event(private_value.numel() // count)
        self._charge(ledger, event, count, private_value.device)
        return self._add_noise(private_value.detach().nan_to_num(0.0, 0.0, 0.0))


class GaussianMechanism(_AdditiveMechanism):
    """Releases a tensor with Gaussian noise calibrated to its L2 sensitivity.

    Args:
        guarantee: What one release has to meet: ``GDP``, ``ApproxDP`` or ``RDP``.
        sensitivity: The largest L2 distance between neighbouring values.
        adjacency: For which neighbours the sensitivity is stated.
        generator: Seeds the noise: for experiments only.
        secure: Exact discrete noise. Only zero-concentrated privacy is proven of it, so
            that ``ApproxDP`` needs a few per cent more noise, and a release under
            ``GDP(mu)`` is charged as mu^2/2-zCDP, from which a ``GDP`` total does not
            follow.

    Example:
        >>> from botorch_dp.privacy import GDP, Ledger
        >>> ledger = Ledger()
        >>> mechanism = GaussianMechanism(GDP(mu=0.5), sensitivity=0.02)
        >>> mechanism.noise_std
        0.04
        >>> mechanism.release(torch.zeros(3), ledger=ledger).shape
        torch.Size([3])
    """

    name = "gaussian"

    def __init__(
        self,
        guarantee: Guarantee,
        *,
        sensitivity: float,
        adjacency: str = "replace_one",
        generator: torch.Generator | None = None,
        secure: bool | SecureNoise = False,
    ) -> None:
        super().__init__(adjacency=adjacency, generator=generator, secure=secure)
        self.sensitivity = check_positive("sensitivity", sensitivity)
        self.guarantee = check_guarantee("guarantee", guarantee)
        exact = not isinstance(self.noise_source, SecureNoise)
        calibrate = gaussian_noise_std if exact else zcdp_noise_std
        self.noise_std = calibrate(guarantee, sensitivity=self.sensitivity)

    def event(self, size: int) -> PrivacyEvent:
        """Return what releasing ``size`` numbers costs."""
        if isinstance(self.noise_source, SecureNoise):
            rho = self.noise_source.gaussian_rho(
                size=size, std=self.noise_std, sensitivity=self.sensitivity
            )
            intended = self.sensitivity**2 / (2 * self.noise_std**2)
            return ZCDPEvent(_check_grid(self.noise_source, rho, intended))
        return GaussianEvent(self.noise_std / self.sensitivity)

    def _add_noise(self, private_value: Tensor) -> Tensor:
        return self.noise_source.add_gaussian(private_value, self.noise_std)


class LaplaceMechanism(_AdditiveMechanism):
    """Releases a tensor with Laplace noise calibrated to its L1 sensitivity.

    Args:
        guarantee: What one release has to meet; usually ``PureDP``.
        sensitivity: The largest L1 distance between neighbouring values; after clipping
            in the L2 norm that is sqrt(d) times larger than the L2 distance.
        adjacency: For which neighbours the sensitivity is stated.
        generator: Seeds the noise: for experiments only.
        secure: Exact discrete noise.

    Example:
        >>> from botorch_dp.privacy import Ledger, PureDP
        >>> mechanism = LaplaceMechanism(PureDP(epsilon=0.5), sensitivity=0.02)
        >>> mechanism.scale
        0.04
    """

    name = "laplace"

    def __init__(
        self,
        guarantee: Guarantee,
        *,
        sensitivity: float,
        adjacency: str = "replace_one",
        generator: torch.Generator | None = None,
        secure: bool | SecureNoise = False,
    ) -> None:
        super().__init__(adjacency=adjacency, generator=generator, secure=secure)
        self.sensitivity = check_positive("sensitivity", sensitivity)
        self.guarantee = check_guarantee("guarantee", guarantee)
        self.scale = laplace_scale(guarantee, sensitivity=self.sensitivity)

    def event(self, size: int) -> PrivacyEvent:
        """Return what releasing ``size`` numbers costs."""
        if isinstance(self.noise_source, SecureNoise):
            epsilon = self.noise_source.laplace_epsilon(
                size=size, scale=self.scale, sensitivity=self.sensitivity
            )
            intended = self.sensitivity / self.scale
            return PureEvent(_check_grid(self.noise_source, epsilon, intended))
        return LaplaceEvent(self.scale / self.sensitivity)

    def _add_noise(self, private_value: Tensor) -> Tensor:
        return self.noise_source.add_laplace(private_value, self.scale)


class ExponentialMechanism(Mechanism):
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
    ) -> None:
        super().__init__(adjacency=adjacency, generator=generator, secure=secure)
        self.sensitivity = check_positive("sensitivity", sensitivity)
        self.guarantee = check_guarantee("guarantee", guarantee)
        if monotone and adjacency == "replace_one":
            raise InvalidArgumentError(
                "monotone=True does not fit adjacency='replace_one': replacing a "
                "record can raise some scores and lower others."
            )
        self.epsilon = guarantee.to_pure().epsilon
        self.scale = (1 if monotone else 2) * self.sensitivity / self.epsilon

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


class SubsampledGaussianMechanism(Mechanism):
    r"""Releases the sum of a random sample of clipped records, with Gaussian noise.

    Sampling amplifies privacy as long as nobody learns who was sampled. The sum, not
    the mean, is released: divide by the *expected* number of sampled records.

    * ``sampling_rate``: a Poisson sample, every record on its own with this
      probability. Neighbours differ by a record that is absent on one side, so that the
      sensitivity is ``clip_norm`` [Mironov2019sampled]_.
    * ``sample_size`` and ``num_records``: a subset of fixed size, without replacement.
      Neighbours differ by a replaced record: the sensitivity is twice ``clip_norm``.

    Args:
        noise_multiplier: Standard deviation of the noise over the sensitivity.
        clip_norm: The L2 norm to which every record is clipped.
        sampling_rate: The probability of each record, above zero and at most one.
        sample_size: The size of the subset.
        num_records: The number of records, which is public then.
        adjacency: ``"zero_out"`` (default) or ``"add_or_remove_one"`` for a Poisson
            sample; ``"replace_one"`` for a subset of fixed size.
        generator: Seeds the noise and the sample: for experiments only.

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
        super().__init__(adjacency=adjacency, generator=generator)
        self.noise_multiplier = check_positive("noise_multiplier", noise_multiplier)
        self.clip_norm = check_positive("clip_norm", clip_norm)
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

    def event(self) -> PrivacyEvent:
        """Return what one release costs."""
        return self._event

    def release(self, private_rows: Tensor, *, ledger: Chargeable) -> Tensor:
        """Charge the ledger, then return the noised sum of a fresh sample.

        Args:
            private_rows: An ``n x d`` tensor of float32 or float64, a row a record.
            ledger: A ledger or an accountant, charged before anything is drawn.

        Returns:
            A tensor of ``d`` numbers, which may be published.

        Raises:
            BudgetExceededError: If the ledger's cap does not allow it.
        """
        check_private_tensor("private_rows", private_rows, min_dim=2)
        num_rows, device = private_rows.shape[0], private_rows.device
        if private_rows.dim() != 2:
            raise InvalidArgumentError(
                f"private_rows must be n x d, got shape {tuple(private_rows.shape)}."
            )
        expected = getattr(self._event, "num_records", num_rows)
        if num_rows != expected:
            raise InvalidArgumentError(
                f"private_rows must have num_records={expected} rows, got {num_rows}."
            )
        clipped = clip_rows(private_rows, self.clip_norm)  # checks the bound, too
        self._charge(ledger, self.event(), 1, device)
        if isinstance(self._event, FixedSizeGaussianEvent):
            sample = self.noise_source.fixed_size_sample(
                num_rows, self._event.sample_size, device
            )
            total = clipped[sample].double().sum(dim=0)
        else:
            sample = self.noise_source.poisson_sample(
                num_rows, self._event.sampling_rate, device
            )
            total = sample.double() @ clipped.double()
        noisy = self.noise_source.add_gaussian(total, self.noise_std)
        return noisy.to(private_rows.dtype)


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


def _check_grid(source: SecureNoise, cost: float, intended: float) -> float:
    """Return the cost if rounding to the grid adds little to it."""
    if cost > intended * (1 + _MOST_GRID_COST):
        raise InvalidArgumentError(
            f"secure has a grid, 2^{source.grid_exponent}, that is too coarse for this "
            f"noise: the release would cost {cost / intended:.3g} times what was asked "
            "for. Choose a smaller grid_exponent."
        )
    return cost
