r"""Whether the optimum has moved, from public messages alone.

A test on released messages is post-processing: it costs no privacy, whatever it does
and whenever it stops. It also knows more than a test on raw data would: the clip norm
and the noise are public, so its false alarms are bounded without assumptions about the
users.

While the parameter is where the mean gradient is zero, the sums of messages are a
martingale with known tails. The proofs are in ``docs/theory/ldp_bo.md``.

References:
    .. [Shin2024edetectors] J. Shin, A. Ramdas and A. Rinaldo. E-detectors: a
        Nonparametric Framework for Sequential Change Detection. The New England Journal
        of Statistics in Data Science, 2024.
    .. [LDPBO2025] Online Differential Privacy Bayesian Optimization with Sliced
        Wasserstein Compression. Sections D.3 and E.5.
"""

import math
from typing import Any

import torch
from torch import Tensor

from botorch_dp._validation import (
    check_clip_norm,
    check_count,
    check_nonnegative,
    check_positive,
    check_tensor,
)
from botorch_dp.optimizers.core.state import Stateful

# The starts that are kept, and how many lie within a window. More starts raise the
# threshold; fewer notice a change up to a tenth of a window later.
_STARTS_IN_A_WINDOW = 10
_KEPT = 2 * _STARTS_IN_A_WINDOW


class DriftDetector(Stateful):
    r"""Raises an alarm when messages have a mean that noise does not explain.

    Sums S of the messages since several starting times, a tenth of a window apart, give

    .. math:: \Lambda = (1 + \rho n)^{-p/2}
        \exp \frac{\rho \|S\|^2}{2 v (1 + \rho n)}, \qquad
        v = B^2 + s^2, \quad \rho = 1 / \text{window}

    after n messages. As long as every message has mean zero given those before, each
    :math:`\Lambda` has mean at most 1 ([Shin2024edetectors]_), whatever the
    distribution of the users' gradients is. The alarm is raised where their sum exceeds
    a threshold for which the mean time to a false alarm is at least
    ``false_alarm_time``. After an alarm the detector starts again.

    **What an alarm means.** The mean gradient at the parameter has not been zero. That
    is so after a drift of the optimum, but also before the parameter has reached it, so
    start the detector then. A usual reaction is to restart the step sizes and the
    average at the current parameter.

    **What it cannot see**: a change of the users that keeps the mean (clipped) gradient
    at the parameter zero; a mean gradient shorter than :meth:`smallest_gradient`; a
    drift so slow that the steps follow it, as then no gradient of that length arises;
    and it cannot tell a drift from hostile users who all push in one direction.

    Args:
        dim: The number p of numbers in a message.
        clip_norm: The bound B on a user's gradient.
        noise_std: The standard deviation s of the Gaussian noise on each number.
            Laplace noise has heavier tails and is not supported.
        window: The number of users within which a change should be noticed. It tunes
            the test, and false alarms do not depend on it.
        false_alarm_time: The mean number of users between false alarms, at least.
        batch_shape: The shape of a batch of independent streams, for simulations.
        device: The device of the messages; torch's default if None.

    Example:
        >>> detector = DriftDetector(
        ...     dim=2, clip_norm=1.0, noise_std=1.0, window=100, false_alarm_time=1e5
        ... )
        >>> quiet = torch.zeros(2, dtype=torch.float64)
        >>> any(detector.update(quiet) for _ in range(300))
        False
        >>> drifted = torch.tensor([0.6, 0.8], dtype=torch.float64)
        >>> next(n for n in range(1, 300) if detector.update(drifted))
        79
    """

    def __init__(
        self,
        *,
        dim: int,
        clip_norm: float,
        noise_std: float,
        window: int = 1000,
        false_alarm_time: float = 1e6,
        batch_shape: tuple[int, ...] = (),
        device: torch.device | str | None = None,
    ) -> None:
        self.dim = check_count("dim", dim)
        self.clip_norm = check_clip_norm("clip_norm", clip_norm)
        self.noise_std = check_nonnegative("noise_std", noise_std)
        self.window = check_count("window", window, minimum=_STARTS_IN_A_WINDOW)
        self.false_alarm_time = check_positive("false_alarm_time", false_alarm_time)
        self.batch_shape = torch.Size(batch_shape)
        self._spacing = self.window // _STARTS_IN_A_WINDOW
        # Sums since the last starts, how many messages each has, and whether it counts.
        self._sums = torch.zeros(
            (*self.batch_shape, _KEPT, self.dim), dtype=torch.float64, device=device
        )
        self._counts = torch.zeros_like(self._sums[..., 0])
        self._active = torch.zeros_like(self._counts)
        self._num_messages = 0

    @property
    def threshold(self) -> float:
        """The sum of evidence at which an alarm is raised."""
        return 1.0 + self.false_alarm_time / self._spacing

    @property
    def num_messages(self) -> int:
        """The number of messages received."""
        return self._num_messages

    @property
    def evidence(self) -> Tensor:
        """The logarithm of the sum of evidence, ``batch_shape``; public."""
        grown = 1.0 + self._counts / self.window
        squares = self._sums.square().sum(dim=-1)
        scale = 2.0 * self.window * (self.clip_norm**2 + self.noise_std**2)
        logs = squares / (scale * grown) - self.dim / 2 * grown.log()
        return logs.masked_fill(self._counts == 0, -torch.inf).logsumexp(dim=-1)

    def update(self, message: Tensor) -> Tensor:
        """Take the next message, and return whether to raise an alarm.

        Args:
            message: A released gradient, ``batch_shape x p``, such as the ``gradient``
                of an :class:`~botorch_dp.optimizers.LDPAnswer` that the server
                accepted. It is public.

        Returns:
            A ``batch_shape`` tensor of booleans.
        """
        check_tensor("message", message, (*self.batch_shape, self.dim), finite=True)
        if self._num_messages % self._spacing == 0:
            slot = self._num_messages // self._spacing % _KEPT
            self._sums[..., slot, :] = 0.0
            self._counts[..., slot] = 0.0
            self._active[..., slot] = 1.0
        self._num_messages += 1
        added = message.detach().to(self._sums).unsqueeze(-2)
        self._sums += added * self._active.unsqueeze(-1)
        self._counts += self._active
        alarm = self.evidence >= math.log(self.threshold)
        for tensor in (
            self._sums,
            self._counts.unsqueeze(-1),
            self._active.unsqueeze(-1),
        ):
            tensor.masked_fill_(alarm[..., None, None], 0.0)
        return alarm

    def smallest_gradient(self, num_messages: int) -> float:
        r"""Return the length of a mean gradient that so many messages reveal.

        A mean of this length in all messages after a change brings the expected sum of
        ``num_messages`` of them to the threshold. It is near

        .. math:: 2 \sqrt{v / n} \, \sqrt{\log(\text{threshold}) + (p / 2) \log 2}

        for n equal to the window.

        Args:
            num_messages: The number n of messages since the change.

        Example:
            >>> detector = DriftDetector(dim=5, clip_norm=1.4, noise_std=1.7)
            >>> round(detector.smallest_gradient(1000), 2)
            0.46
        """
        number = check_count("num_messages", num_messages)
        variance = self.clip_norm**2 + self.noise_std**2
        grown = 1.0 + number / self.window
        needed = math.log(self.threshold) + self.dim / 2 * math.log(grown)
        return math.sqrt(2 * variance * self.window * grown * needed) / number

    def settings(self) -> dict[str, Any]:
        """Return the public parameters, as plain values."""
        return {
            "method": "drift detector",
            "dim": self.dim,
            "clip_norm": self.clip_norm,
            "noise_std": self.noise_std,
            "window": self.window,
            "false_alarm_time": self.false_alarm_time,
            "batch_shape": list(self.batch_shape),
        }

    def _state(self) -> dict[str, Any]:
        return {
            "sums": self._sums,
            "counts": self._counts,
            "active": self._active,
            "num_messages": self._num_messages,
        }

    def _check_state(self, state: dict[str, Any]) -> None:
        check_count("num_messages", state["num_messages"], minimum=0)
        check_tensor("sums", state["sums"], self._sums.shape, finite=True)
        for name in ("counts", "active"):
            values = check_tensor(name, state[name], self._counts.shape, finite=True)
            if (values < 0).any():
                raise ValueError(f"{name} are negative")

    def _restore(self, state: dict[str, Any]) -> None:
        self._sums = state["sums"].to(self._sums)
        self._counts = state["counts"].to(self._counts)
        self._active = state["active"].to(self._active)
        self._num_messages = state["num_messages"]
