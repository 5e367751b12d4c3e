r"""What a user sends: its clipped gradient plus its own noise.

A gradient clipped to norm B is within 2 B of any other user's gradient. This is the
sensitivity: in the L2 norm for Gaussian noise, and in the L1 norm for Laplace noise,
for which clipping is in the L1 norm as well.

References:
    .. [LDPBO2025] Online Differential Privacy Bayesian Optimization with Sliced
        Wasserstein Compression. Its Corollary B.1 adds noise of standard deviation
        :math:`B \sqrt{q / (2 \epsilon)}` for :math:`(q, \epsilon)` Renyi privacy. The
        sensitivity 2 B needs :math:`B \sqrt{2 q / \epsilon}`, which is what ``RDP``
        gives here. Its Laplace noise needs the L1 sensitivity.
"""

import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
from scipy.special import gammainccinv
from torch import Tensor

from botorch_dp._validation import (
    check_callable,
    check_choice,
    check_clip_norm,
    check_count,
    check_nonnegative,
    check_private_tensor,
    check_probability,
)
from botorch_dp.exceptions import (
    BudgetExceededError,
    InvalidArgumentError,
    WeakGuaranteeWarning,
)
from botorch_dp.privacy.accountant import Chargeable
from botorch_dp.privacy.calibration import (
    check_guarantee,
    classical_gaussian_noise_std,
)
from botorch_dp.privacy.clipping import check_bound
from botorch_dp.privacy.events import PrivacyEvent
from botorch_dp.privacy.guarantees import GDP, ApproxDP, Guarantee
from botorch_dp.privacy.ledger import Ledger
from botorch_dp.privacy.mechanisms.additive import GaussianMechanism, LaplaceMechanism
from botorch_dp.privacy.noise import SecureNoise, SeededNoise, SystemNoise
from botorch_dp.privacy.noise_ahead import NoiseAhead
from botorch_dp.privacy.small_clipping import clip_few_rows

MECHANISMS = ("gaussian", "classical", "laplace")
_WEAK_DELTA = 1e-2
# The most that the grid of secure noise adds to the length of a message, in clip norms.
_GRID_SLACK = 0.25


class LocalRelease:
    r"""Charges for a user's gradient, clips it and adds noise.

    A client (:class:`LDPBOClient`) and a simulation (:class:`LDPBO`) release gradients
    through this class alone.

    Args:
        guarantee: The guarantee of one message. ``ApproxDP`` is calibrated by the
            analytic formula, ``GDP`` and ``RDP`` exactly. ``PureDP`` needs Laplace
            noise.
        clip_norm: The bound B.
        mechanism: ``"gaussian"``, ``"laplace"`` (clips in the L1 norm), or
            ``"classical"``: the textbook Gaussian calibration, to reproduce a paper.
        generator: A seeded generator of the noise, for experiments only.
        secure: Whether to draw exact discrete noise.
        ahead: Whether to draw the noise of many messages in one call, for streams of
            short messages, see :class:`NoiseAhead`. Seeded and secure noise is always
            drawn for one message at a time.

    Example:
        >>> from botorch_dp import GDP, Ledger
        >>> release = LocalRelease(GDP(mu=1.0), clip_norm=1.0)
        >>> release.noise_std
        2.0
        >>> release(torch.tensor([3.0, 4.0]), ledger=Ledger()).shape
        torch.Size([2])
    """

    def __init__(
        self,
        guarantee: Guarantee,
        clip_norm: float,
        *,
        mechanism: str = "gaussian",
        generator: torch.Generator | None = None,
        secure: bool | SecureNoise = False,
        ahead: bool = False,
    ) -> None:
        self.guarantee = check_guarantee("guarantee", guarantee)
        self.clip_norm = check_clip_norm("clip_norm", clip_norm)
        self.kind = check_choice("mechanism", mechanism, MECHANISMS)
        self._norm = "l1" if mechanism == "laplace" else "l2"
        sensitivity = 2.0 * self.clip_norm
        if isinstance(guarantee, ApproxDP) and guarantee.delta > _WEAK_DELTA:
            warnings.warn(
                f"{guarantee!r} lets a message reveal its user with probability "
                f"{guarantee.delta:.4g}: choose delta below one over the number of "
                "users.",
                WeakGuaranteeWarning,
                stacklevel=3,
            )
        if mechanism == "classical":
            if not isinstance(guarantee, ApproxDP):
                raise InvalidArgumentError(
                    "mechanism='classical' needs guarantee to be an ApproxDP(epsilon, "
                    f"delta), got {guarantee!r}."
                )
            with warnings.catch_warnings():
                # Its true cost is charged and certified.
                warnings.simplefilter("ignore", WeakGuaranteeWarning)
                noise_std = classical_gaussian_noise_std(
                    guarantee, sensitivity=sensitivity
                )
            guarantee = GDP(sensitivity / noise_std)
        make = LaplaceMechanism if mechanism == "laplace" else GaussianMechanism
        self._mechanism = make(
            guarantee,
            sensitivity=sensitivity,
            generator=generator,
            secure=secure,
            unit="user",
        )
        self._events: dict[int, PrivacyEvent] = {}
        self._ahead: NoiseAhead | None = None
        # The order of seeded draws is that of the messages, and secure noise is not
        # added to a value but drawn around it.
        if ahead and type(self._mechanism.noise_source) is SystemNoise:
            self._ahead = NoiseAhead(self._mechanism._draw)

    @property
    def noise_std(self) -> float:
        """The standard deviation of the noise on each number."""
        if isinstance(self._mechanism, LaplaceMechanism):
            return math.sqrt(2.0) * self._mechanism.scale
        return self._mechanism.noise_std

    def __call__(
        self,
        private_gradients: Tensor,
        *,
        ledger: Chargeable,
        batch_dims: int | None = None,
    ) -> Tensor:
        """Check, charge, clip and add noise, in this order.

        Args:
            private_gradients: A ``batch_shape x p`` tensor with one user's gradient in
                each row. A gradient that is not finite counts as zero.
            ledger: The ledger to charge, once for each row.
            batch_dims: The number of dimensions of ``batch_shape``. If given, it must
                be one less than the dimensions of ``private_gradients``.

        Returns:
            A ``batch_shape x p`` tensor of messages, which may be published.
        """
        check_private_tensor("private_gradients", private_gradients, min_dim=1)
        rows = private_gradients.dim() - 1
        if batch_dims not in (None, rows):
            raise InvalidArgumentError(
                f"batch_dims must be {rows} for private_gradients with {rows + 1} "
                "dimensions: each row is clipped as one user's gradient. Got "
                f"{batch_dims!r}."
            )
        return self.charge_first(
            lambda: private_gradients,
            ledger=ledger,
            size=private_gradients.shape[-1],
            like=private_gradients,
            count=private_gradients.shape[:-1].numel(),
        )

    def charge_first(
        self,
        private_gradients: Callable[[], Tensor],
        *,
        ledger: Chargeable,
        size: int,
        like: Tensor,
        count: int = 1,
    ) -> Tensor:
        """Charge, and only then compute gradients, clip them and add noise.

        A gradient may come from a user's own code. Whatever that code does, the ledger
        has been charged.

        Args:
            private_gradients: A function that returns ``count`` rows of ``size``
                numbers, one user's gradient in each row.
            ledger: The ledger to charge.
            size: The number of numbers in a message.
            like: A tensor with the dtype and device of the gradients.
            count: The number of messages.
        """
        check_bound(self.clip_norm, like.dtype)
        self._mechanism.noise_source.check_device(like.device)
        self.charge(ledger, size=size, count=count)
        rows = clip_few_rows(private_gradients(), self.clip_norm, norm=self._norm)
        if self._ahead is not None:
            return self._ahead.add(rows)
        paid = _PaidFor(self._event(size), count)
        return self._mechanism.release(rows, ledger=paid, batch_dims=rows.dim() - 1)

    def fits(self, ledger: Ledger, *, size: int) -> bool:
        """Return whether the ledger allows one more message of ``size`` numbers."""
        return ledger.allows(self._mechanism.event(size))

    def check_budget(self, ledger: Ledger, *, size: int) -> None:
        """Raise unless the ledger allows one more message of ``size`` numbers."""
        if not self.fits(ledger, size=size):
            raise BudgetExceededError(
                f"Another message would exceed the cap {ledger.cap!r}: nothing was "
                "evaluated, recorded or drawn."
            )

    def charge(self, ledger: Chargeable, *, size: int, count: int = 1) -> None:
        """Charge for messages of ``size`` numbers without sending any."""
        mechanism = self._mechanism
        expected = "a Ledger or a PrivacyAccountant"
        check_callable("ledger", getattr(ledger, "charge", None), expected=expected)
        ledger.charge(
            self._event(size),
            count=count,
            mechanism=mechanism.name,
            adjacency=mechanism.adjacency,
            noise=mechanism.noise_source.name,
            unit=mechanism.unit,
        )

    def _event(self, size: int) -> PrivacyEvent:
        event = self._events.get(size)
        if event is None:
            event = self._events[size] = self._mechanism.event(size)
        return event

    def skip(self, like: Tensor) -> None:
        """Draw the noise of a message and discard it, if the noise is seeded."""
        source = self._mechanism.noise_source
        if isinstance(source, SeededNoise):
            draw = source.add_laplace if self._norm == "l1" else source.add_gaussian
            draw(like, 1.0)


def longest_message(
    *, clip_norm: float, noise_std: float, dim: int, failure: float = 1e-6
) -> float:
    """Return a length that an honest user's message rarely exceeds.

    It is valid for every kind of noise, see ``docs/theory/longest_message.md``, and
    depends on public facts only.

    Args:
        clip_norm: The bound B.
        noise_std: The standard deviation of the noise on each number; the largest one
            if users differ.
        dim: The number p of numbers in a message.
        failure: The probability that an honest message is longer.

    Example:
        >>> round(longest_message(clip_norm=1.0, noise_std=2.0, dim=2), 1)
        24.9
    """
    reach = (1 + _GRID_SLACK) * check_clip_norm("clip_norm", clip_norm)
    noise_std = check_nonnegative("noise_std", noise_std)
    dim = check_count("dim", dim)
    failure = check_probability("failure", failure)
    gaussian = math.sqrt(dim) + math.sqrt(2 * math.log(1 / failure))
    laplace = min(
        math.sqrt(dim) + math.sqrt(2) * math.log(3 / failure),
        float(gammainccinv(dim, failure)) / math.sqrt(2),
    )
    return reach + noise_std * max(gaussian, laplace)


class _PaidFor:
    """Accepts the charge of a release that another ledger was charged for before.

    Args:
        event: The event that was charged.
        count: How many times it was charged.
    """

    def __init__(self, event: PrivacyEvent, count: int = 1) -> None:
        self._paid: tuple[PrivacyEvent, int] | None = (event, count)

    def charge(self, event: PrivacyEvent, *, count: int = 1, **labels: Any) -> None:
        """Raise unless this is the release that was paid for."""
        del labels
        if (event, count) != self._paid:
            raise BudgetExceededError(
                f"{(event, count)!r} was not paid for: the charge was {self._paid!r}."
            )
        self._paid = None
