"""The user's side of local privacy: everything that leaves it has its own noise."""

from collections.abc import Callable

import torch
from torch import Tensor

from botorch_dp._validation import check_callable, check_private_tensor
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.optimizers.ldp.gradient_release import LocalRelease
from botorch_dp.optimizers.ldp.messages import LDPAnswer, LDPQuery
from botorch_dp.privacy.account import check_ledger
from botorch_dp.privacy.certificate import WORST_CASE, Certificate
from botorch_dp.privacy.guarantees import Guarantee
from botorch_dp.privacy.ledger import Ledger
from botorch_dp.privacy.noise import SecureNoise

LOCAL_ASSUMPTIONS = (
    WORST_CASE,
    "local: noise is added on the user's own device, and no server has to be trusted; "
    "it may send any query",
    "an answer depends on this user's record and the query alone",
    "whether and when a user answers, and whether its budget is spent, is not hidden",
)


class LDPBOClient:
    r"""Answers queries about one user's record with private gradients.

    For a query with points D and weights W, the client charges its own ledger,
    evaluates the losses at D, multiplies (:math:`g = W \ell`), clips g to norm B and
    adds noise, in this order. Whatever D and W a server sends, g has norm at most B. If
    the budget is spent, the loss is not called.

    The behavior of ``losses`` may depend on the record, so it must not be observable.
    If it raises (``SystemExit`` included), or returns something other than M finite
    numbers in single or double precision, the gradient counts as zero. The answer is
    noise then, and costs as much as any other. To find a mistake in a loss, call
    :meth:`private_losses`. Only ``KeyboardInterrupt`` is raised, so that the person at
    the device can stop it: the ledger has been charged, and nothing is sent. A loss
    must not raise it by itself.

    The same query gets the same answer again, free of charge, because the first answer
    may have been lost.

    Args:
        losses: A function from ``M x p`` points to the ``M`` losses of this user's
            record. It is called on the device only, and its result never leaves it.
        guarantee: The guarantee of one answer.
        clip_norm: The bound B.
        mechanism: ``"gaussian"``, ``"laplace"`` or ``"classical"``, see
            :class:`LocalRelease`.
        ledger: The ledger of this user, for all runs it takes part in. By default its
            cap is the guarantee, which allows one answer. Give
            ``Ledger(path, cap=...)`` to keep it over restarts and to allow more.
        generator: A seeded generator of the noise, for experiments only.
        secure: Whether to draw exact discrete noise.

    Example:
        >>> from botorch_dp import ApproxDP, LDPBOServer, StepSchedule
        >>> x = torch.zeros(2, dtype=torch.float64)
        >>> server = LDPBOServer(x, step_sizes=StepSchedule(0.1), max_norm=20.0)
        >>> record = torch.tensor([0.3, 0.7], dtype=torch.float64)  # private
        >>> client = LDPBOClient(
        ...     lambda X: (X - record).square().sum(dim=-1),
        ...     ApproxDP(epsilon=2.0, delta=1e-6),
        ...     clip_norm=1.0,
        ... )
        >>> message = client.answer(server.query().to_bytes()).to_bytes()
        >>> server.receive(message)
        >>> server.num_steps
        1
    """

    def __init__(
        self,
        losses: Callable[[Tensor], Tensor],
        guarantee: Guarantee,
        clip_norm: float,
        *,
        mechanism: str = "gaussian",
        ledger: Ledger | None = None,
        generator: torch.Generator | None = None,
        secure: bool | SecureNoise = False,
    ) -> None:
        expected = "a function from points to losses"
        self._losses = check_callable("losses", losses, expected=expected)
        check_ledger("ledger", ledger, optional=True)
        self._release = LocalRelease(
            guarantee,
            clip_norm,
            mechanism=mechanism,
            generator=generator,
            secure=secure,
        )
        self.ledger = Ledger(cap=guarantee) if ledger is None else ledger
        if not len(self.ledger) and not self._release.fits(self.ledger, size=1):
            raise InvalidArgumentError(
                "ledger must have a cap that allows one answer, got "
                f"{self.ledger.cap!r}: it does not cover the true cost of "
                f"{mechanism!r} noise for {guarantee!r} with secure={secure!r}."
            )
        self._answered: tuple[bytes, LDPAnswer] | None = None

    @property
    def noise_std(self) -> float:
        """The standard deviation of the noise on each number."""
        return self._release.noise_std

    def answer(self, query: LDPQuery | bytes) -> LDPAnswer:
        """Return this user's private gradient.

        Args:
            query: A query from any server.

        Raises:
            MessageError: If the query cannot be read.
            BudgetExceededError: If this user's budget is spent. Nothing is evaluated,
                drawn or sent then.
        """
        if isinstance(query, LDPQuery):
            query = query.to_bytes()
        if self._answered is not None and self._answered[0] == query:
            return self._answered[1]
        # Bytes are always read in double precision on the CPU, whoever asks.
        asked = LDPQuery.from_bytes(query)
        size = len(asked.x)
        self._release.check_budget(self.ledger, size=size)
        noised = self._release.charge_first(
            lambda: self._private_gradient(asked),
            ledger=self.ledger,
            size=size,
            like=asked.x,
        )
        answer = LDPAnswer(asked.run_id, asked.step, noised)
        self._answered = (query, answer)
        return answer

    def private_losses(self, query: LDPQuery | bytes) -> Tensor:
        """Return the losses at a query's points, or raise what ``losses`` raises.

        This method is private: its result and its errors depend on the record and have
        no noise. Use it on the user's own device to find mistakes in a loss, and do not
        send, log or store the outcome. It charges nothing and does not affect
        :meth:`answer`.

        Args:
            query: A query from any server.

        Raises:
            InvalidArgumentError: If ``losses`` does not return M numbers in single or
                double precision.
        """
        if isinstance(query, LDPQuery):
            query = query.to_bytes()
        return self._evaluate(LDPQuery.from_bytes(query).evaluation_points)

    def _private_gradient(self, asked: LDPQuery) -> Tensor:
        """Return the gradient, or zeros if the user's code does anything unexpected."""
        zeros, points = torch.zeros_like(asked.x), asked.evaluation_points
        # A loss may do anything at a point that is not finite.
        if not points.isfinite().all():
            return zeros
        try:
            # Copy into a new tensor: the user's may be of a class with other methods.
            gradient = torch.zeros_like(zeros)
            gradient.copy_(asked.gradient(self._evaluate(points)))
            return gradient
        except KeyboardInterrupt:
            raise
        except BaseException:  # it may depend on the record, so it must not get out
            return zeros

    def _evaluate(self, points: Tensor) -> Tensor:
        count, like = len(points), points.new_empty(0)  # a loss may change its points
        losses = check_private_tensor("losses", self._losses(points))
        if losses.shape != (count,):
            raise InvalidArgumentError(
                f"losses must return {count} numbers, one for each point, got shape "
                f"{tuple(losses.shape)}."
            )
        return losses.detach().to(like)

    def certificate(self) -> Certificate:
        """Return the guarantee to this user for all its answers so far."""
        return Certificate.from_ledger(
            self.ledger,
            unit="user",
            assumptions=LOCAL_ASSUMPTIONS,
            parameters={
                "method": "ldp-bo",
                "mechanism": self._release.kind,
                "clip_norm": self._release.clip_norm,
                "noise_std": self.noise_std,
                "asked for, each answer": repr(self._release.guarantee),
            },
        )
