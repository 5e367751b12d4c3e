r"""The user's side of local privacy: nothing leaves it without noise of its own."""

from collections.abc import Callable

import torch
from torch import Tensor

from botorch_dp._checks import check_private_tensor
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.optimizers.ldp_messages import Answer, Query
from botorch_dp.optimizers.local_release import LocalRelease
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

    For a query with points D and weights W it evaluates its own losses at D, multiplies
    (:math:`g = W \ell`), clips g to norm B, charges its own ledger, adds noise. In this
    order: whatever D and W a server sends, g has norm at most B, and what is sent costs
    what was charged. Numbers that are not finite, in the query or in the losses, and a
    loss that raises an exception count as a gradient of zero, to which noise is added
    all the same: whether any of this happens is private. (So try a loss by hand first.)
    When the budget is spent the loss is not even called.

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
        >>> server = LDPBOServer(x, step=StepSchedule(initial=0.1))
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
        self._release.check_budget(self.ledger, size=len(asked.x))
        gradient = asked.gradient(self._private_losses(asked.evaluation_points))
        noised = self._release(gradient, ledger=self.ledger)
        answer = Answer(asked.run, asked.step, noised)
        self._answered = (query, answer)
        return answer

    def _private_losses(self, points: Tensor) -> Tensor:
        # A point that is not finite is not evaluated: who knows what a loss does there.
        finite = bool(points.isfinite().all())
        if not finite:
            return points.new_full((len(points),), torch.nan)
        try:
            losses = self._losses(points)
        except Exception:  # a release, if it got out: it may depend on the record
            return points.new_full((len(points),), torch.nan)
        check_private_tensor("losses", losses)
        if losses.shape != (len(points),):
            raise InvalidArgumentError(
                f"losses must return {len(points)} numbers, one for each point, got "
                f"shape {tuple(losses.shape)}."
            )
        return losses.detach().to(points)

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
