r"""What a user sends: its clipped gradient with noise of its own.

Whoever the user is, a gradient clipped to norm B lies within 2 B of any other user's.
That is the sensitivity, in the L2 norm for Gaussian noise and in the L1 norm for
Laplace noise, where clipping is in the L1 norm, too.

References:
    .. [LDPBO2025] Online Differential Privacy Bayesian Optimization with Sliced
        Wasserstein Compression. Its Corollary B.1 adds noise of standard deviation
        :math:`B \sqrt{q / (2 \epsilon)}` for :math:`(q, \epsilon)` Renyi privacy; with
        the sensitivity 2 B it has to be :math:`B \sqrt{2 q / \epsilon}`, which is what
        ``RDP`` gives here. Its Laplace noise needs the L1 sensitivity.
"""

import math
import warnings

import torch
from torch import Tensor

from botorch_dp._checks import (
    check_choice,
    check_clip_norm,
)
from botorch_dp.exceptions import (
    BudgetExceededError,
    InvalidArgumentError,
    WeakGuaranteeWarning,
)
from botorch_dp.privacy import (
    GDP,
    ApproxDP,
    GaussianMechanism,
    Guarantee,
    LaplaceMechanism,
    Ledger,
    SecureNoise,
    SeededNoise,
    classical_gaussian_noise_std,
    clip_rows,
)
from botorch_dp.privacy.calibration import check_guarantee
from botorch_dp.privacy.ledger import Chargeable

MECHANISMS = ("gaussian", "classical", "laplace")
_WEAK_DELTA = 1e-2


class LocalRelease:
    r"""Clips a user's gradient, and adds noise to it.

    Args:
        guarantee: What one message has to meet. ``ApproxDP`` is calibrated by the
            analytic formula, ``GDP`` and ``RDP`` exactly; ``PureDP`` takes Laplace
            noise.
        clip_norm: The bound B.
        mechanism: ``"gaussian"``, ``"laplace"`` (clips in the L1 norm), or
            ``"classical"``: the textbook Gaussian calibration, to reproduce a paper.
        generator: Seeds the noise: for experiments only.
        secure: Exact discrete noise.

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
                # What it really gives is what is charged and certified.
                warnings.simplefilter("ignore", WeakGuaranteeWarning)
                noise_std = classical_gaussian_noise_std(
                    guarantee, sensitivity=sensitivity
                )
            guarantee = GDP(sensitivity / noise_std)
        make = LaplaceMechanism if mechanism == "laplace" else GaussianMechanism
        self._mechanism = make(
            guarantee, sensitivity=sensitivity, generator=generator, secure=secure
        )

    @property
    def noise_std(self) -> float:
        """The standard deviation of the noise on each number."""
        if isinstance(self._mechanism, LaplaceMechanism):
            return math.sqrt(2.0) * self._mechanism.scale
        return self._mechanism.noise_std

    def __call__(
        self, private_gradients: Tensor, *, ledger: Chargeable, batch_dims: int = 0
    ) -> Tensor:
        """Clip, charge, add noise: in this order. The result may be sent to anyone.

        Args:
            private_gradients: A ``batch_shape x p`` tensor, one user's gradient or
                several users'. One that is not finite counts as zero.
            ledger: What is charged.
            batch_dims: How many leading dimensions index users.
        """
        clipped = clip_rows(private_gradients, self.clip_norm, norm=self._norm)
        return self._mechanism.release(clipped, ledger=ledger, batch_dims=batch_dims)

    def fits(self, ledger: Ledger, *, size: int) -> bool:
        """Return whether the ledger allows one more message of ``size`` numbers."""
        return ledger.allows(self._mechanism.event(size))

    def check_budget(self, ledger: Ledger, *, size: int) -> None:
        """Raise unless the ledger allows one more message of ``size`` numbers."""
        if not self.fits(ledger, size=size):
            raise BudgetExceededError(
                f"Another message would pass the cap {ledger.cap!r}: nothing was "
                "evaluated, recorded or drawn."
            )

    def charge(self, ledger: Chargeable, *, size: int) -> None:
        """Charge a message of ``size`` numbers that is not sent, or was and is lost."""
        mechanism = self._mechanism
        ledger.charge(
            mechanism.event(size),
            mechanism=mechanism.name,
            adjacency=mechanism.adjacency,
            noise=mechanism.noise_source.name,
        )

    def skip(self, like: Tensor) -> None:
        """Draw the noise of a message and lose it, if it can be repeated."""
        source = self._mechanism.noise_source
        if isinstance(source, SeededNoise):
            draw = source.add_laplace if self._norm == "l1" else source.add_gaussian
            draw(like, 1.0)
