"""The base of all private optimizers: an account in a ledger and a plan of releases."""

import uuid
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from torch import Tensor

from botorch_dp._validation import check_choice
from botorch_dp.exceptions import OptimizerStateError
from botorch_dp.optimizers.core.optimizer import Optimizer
from botorch_dp.privacy import Certificate, Guarantee, Ledger, PrivacyEvent, SecureNoise
from botorch_dp.privacy.account import RunAccount, check_ledger
from botorch_dp.privacy.certificate import OF_TOLD_LOSSES, WORST_CASE
from botorch_dp.privacy.entries import UNITS

# Settings that would fill a screen, or that a certificate states in other words.
_NOT_CERTIFIED = ("bounds", "kernel", "guarantee", "transform", "candidates")


class PrivateOptimizer(Optimizer):
    """An optimizer that meets a guarantee and charges a ledger.

    The releases of a run, and what each costs, follow from its public settings alone
    (:meth:`planned_releases`).

    Args:
        guarantee: The guarantee that the whole run has to meet.
        ledger: The ledger to charge; by default a new one with the guarantee as its
            cap.
        adjacency: The neighbouring data sets for which the guarantee holds.
        unit: Who is protected: whose losses a row of ``tell`` contains.
        secure: Whether noise is exact and discrete.
        condition: What the costs rest on, in words, if they do not hold in the worst
            case.
        failure: The probability that a bound fails although the condition holds.
        **kwargs: The arguments of :class:`Optimizer`.
    """

    #: The assumption that stands for "worst case" in the certificate.
    assumptions: ClassVar[tuple[str, ...]] = (WORST_CASE,)

    def __init__(
        self,
        *,
        guarantee: Guarantee,
        ledger: Ledger | None,
        adjacency: str = "replace_one",
        unit: str = "record",
        secure: bool | SecureNoise = False,
        condition: str | None = None,
        failure: float = 0.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_ledger("ledger", ledger, optional=True)
        self.guarantee, self.secure = guarantee, secure
        self._own_ledger = ledger is None
        self.account = RunAccount(
            Ledger(cap=guarantee) if ledger is None else ledger,
            f"{self.name} {uuid.uuid4().hex}",
            adjacency=adjacency,
            unit=check_choice("unit", unit, UNITS),
            condition=condition,
            failure=failure,
        )

    @property
    def ledger(self) -> Ledger:
        """The ledger that the run charges."""
        return self.account.ledger

    @property
    def adjacency(self) -> str:
        """The neighbouring data sets for which the guarantee holds."""
        return self.account.adjacency

    @property
    def unit(self) -> str:
        """Who is protected."""
        return self.account.unit

    @abstractmethod
    def planned_releases(self) -> list[tuple[PrivacyEvent, int]]:
        """Return every release of the whole run, from public settings alone.

        Returns:
            Pairs of an event and how many releases of that cost the run makes.
        """

    def ask(self) -> Tensor:
        """Return the points to evaluate next, from public state alone.

        Returns:
            A ``b x d`` tensor; the same one until :meth:`tell` is called.

        Raises:
            BudgetExceededError: Before the first release, if the ledger cannot pay for
                the whole run.
        """
        if not self._history and not self.account.num_charged:
            self.account.reserve(self.planned_releases())
        return super().ask()

    def certificate(self, *, with_runs: Sequence[str] = ()) -> Certificate:
        """Return what is guaranteed about everything charged to the ledger.

        Args:
            with_runs: The identities of other runs of the same search, such as an
                earlier stage, which the parameters are also about.
        """
        return Certificate.from_ledger(
            self.ledger,
            assumptions=(*self.assumptions, *OF_TOLD_LOSSES),
            parameters=self._certified_parameters(),
            runs=[*with_runs, *self.account.runs],
        )

    def settings(self) -> dict[str, Any]:
        """Return the public parameters, as plain values."""
        return {**super().settings(), "guarantee": self.guarantee.to_dict()}

    def _certified_parameters(self) -> dict[str, Any]:
        """Return the settings that a reader of the certificate wants to see."""
        settings = self.settings().items()
        shown = {key: value for key, value in settings if key not in _NOT_CERTIFIED}
        if self.unit == "person" and "num_records" in shown:  # a row is a person
            shown = {"num_persons": shown.pop("num_records"), **shown}
        return {**shown, "budget": repr(self.guarantee)}

    def _num_due(self, num_steps: int) -> int:
        """Return how many charges a number of steps must have made."""
        return num_steps

    def _keep_ledger_at(self, path: str) -> None:
        if self.ledger.path is not None:
            return
        if not self._own_ledger or len(self.ledger):
            raise OptimizerStateError(
                "checkpoint needs a ledger that outlives the process: give the "
                "optimizer ledger=Ledger(path, cap=...), or start a new run."
            )
        self.account.ledger = Ledger(path, cap=self.ledger.cap)

    def _state(self) -> dict[str, Any]:
        return {**super()._state(), **self.account.state_dict()}

    def _check_state(self, state: dict[str, Any]) -> None:
        super()._check_state(state)
        plan, secure = self.planned_releases(), bool(self.secure)
        num_charged = self.account.check_state(state, plan, secure=secure)
        num_steps = len(state["history"])
        if num_charged < self._num_due(num_steps):
            raise ValueError(f"{num_steps} steps, but only {num_charged} charges")

    def _charge_state(self, state: dict[str, Any]) -> None:
        self.account.load_state_dict(state, self.planned_releases())
