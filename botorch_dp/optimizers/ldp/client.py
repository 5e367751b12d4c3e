r"""The user's side of local privacy: nothing leaves it without noise of its own."""

from collections.abc import Callable

import torch
from torch import Tensor

from botorch_dp._validation import check_private_tensor
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.optimizers.ldp.gradient_release import LocalRelease
from botorch_dp.optimizers.ldp.messages import Answer, Query
from botorch_dp.privacy import Certificate, Guarantee, Ledger, SecureNoise
from botorch_dp.privacy.certificate import WORST_CASE

LOCAL_ASSUMPTIONS = (
    WORST_CASE,
    "local: noise is added on the user's own device, and no server has to be trusted; "
    "it may send any query",
    "what is answered depends on this user's record and the query alone",
    "whether and when a user answers is not hidden, nor that its budget is spent",
)


class LDPBOClient:
    r"""Answers queries about one user's record with private gradients.

    For a query with points D and weights W it charges its own ledger, evaluates its own
    losses at D, multiplies (:math:`g = W \ell`), clips g to norm B and adds noise. In
    this order: whatever D and W a server sends, g has norm at most B, and whatever
    ``losses`` does was paid for. When the budget is spent the loss is not even called.

    What ``losses`` does may depend on the record, so nobody may notice it: if it raises
    (``SystemExit`` included), or returns something other than M finite numbers in
    single or double precision, its gradient counts as zero. The answer is noise then,
    and it costs as much as any other. To find a mistake in a loss, call
    :meth:`private_losses`. Only ``KeyboardInterrupt`` is not kept back, so that the
    person at the device can stop it: it is raised after the charge, and nothing is
    sent. A loss must not raise it by itself.

    The same query again gets the same answer again, at no cost: it may have been lost.

    Args:
        losses: From ``M x p`` points to the ``M`` losses of this user's record, by
            which it is bound. Called on the device only; what it returns never leaves.
        guarantee: What one answer has to meet.
        clip_norm: The bound B.
        mechanism: ``"gaussian"``, ``"laplace"`` or ``"classical"``, see
            :class:`LocalRelease`.
        ledger: What this user has spent, over all runs it takes part in. By default one
            with the guarantee as its cap, which allows one answer; give
            ``Ledger(path, cap=...)`` to remember over restarts, and to allow more.
        generator: Seeds the noise: for experiments only.
        secure: Exact discrete noise.

    Example:
        >>> from botorch_dp import ApproxDP, LDPBOServer, StepSchedule
        >>> x = torch.zeros(2, dtype=torch.float64)
        >>> server = LDPBOServer(x, step=StepSchedule(initial=0.1), max_norm=20.0)
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
        if not callable(losses):
            raise InvalidArgumentError(
                f"losses must be a function from points to losses, got {losses!r}."
            )
        if not isinstance(ledger, Ledger | None):
            raise InvalidArgumentError(
                f"ledger must be a botorch_dp.Ledger or None, got {ledger!r}."
            )
        self._losses = losses
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
                f"ledger must have a cap that allows one answer: {self.ledger.cap!r} "
                f"does not allow what {mechanism!r} noise for {guarantee!r} really "
                f"costs, with secure={secure!r}."
            )
        self._answered: tuple[bytes, Answer] | None = None

    @property
    def noise_std(self) -> float:
        """The standard deviation of the noise on each number."""
        return self._release.noise_std

    def answer(self, query: Query | bytes) -> Answer:
        """Return this user's private gradient.

        Args:
            query: From any server.

        Raises:
            MessageError: If the query cannot be read.
            BudgetExceededError: If this user has nothing left to spend. Nothing is
                drawn then, and nothing sent.
        """
        if isinstance(query, Query):
            query = query.to_bytes()
        if self._answered is not None and self._answered[0] == query:
            return self._answered[1]
        # Read from bytes, always: double precision on the CPU, whoever asks.
        asked = Query.from_bytes(query)
        size = len(asked.x)
        self._release.check_budget(self.ledger, size=size)
        noised = self._release.charge_first(
            lambda: self._private_gradient(asked),
            ledger=self.ledger,
            size=size,
            device=asked.x.device,
        )
        answer = Answer(asked.run, asked.step, noised)
        self._answered = (query, answer)
        return answer

    def private_losses(self, query: Query | bytes) -> Tensor:
        """Return the losses at a query's points, or raise what goes wrong.

        Private: what it returns and raises depends on the record, and has no noise. Use
        it on the user's own device to find mistakes in a loss, and do not send, log or
        store the outcome. Nothing is charged, and :meth:`answer` stays as it is.

        Args:
            query: From any server.

        Raises:
            InvalidArgumentError: If ``losses`` does not return M numbers in single or
                double precision. What it raises itself comes through as it is.
        """
        if isinstance(query, Query):
            query = query.to_bytes()
        return self._evaluate(Query.from_bytes(query).evaluation_points)

    def _private_gradient(self, asked: Query) -> Tensor:
        """Return the gradient, or zeros if the user's code does anything unexpected."""
        nothing, points = torch.zeros_like(asked.x), asked.evaluation_points
        # A point that is not finite is not evaluated: who knows what a loss does there.
        if not points.isfinite().all():
            return nothing
        try:
            losses = self._evaluate(points)
            # Into a tensor of our own: the user's may be of a class with other methods.
            gradient = torch.zeros_like(nothing)
            gradient.copy_(asked.gradient(losses))
            return gradient
        except KeyboardInterrupt:
            raise
        except BaseException:  # a release, if it got out: it may depend on the record
            return nothing

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
        """Return what is guaranteed to this user for all its answers so far."""
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
