"""A joint budget that composes all runs: every trained model may be published."""

import os
from typing import Any

from botorch_dp._validation import check_choice
from botorch_dp.exceptions import BudgetExceededError, InvalidArgumentError
from botorch_dp.integrations.opacus.joint_budget import JointBudget, reported_delta
from botorch_dp.integrations.opacus.ledgers import (
    ADJACENCY,
    RECORDS,
    larger,
    ledger_paths,
)
from botorch_dp.integrations.opacus.plan import JointPlan
from botorch_dp.integrations.opacus.training import PlannedRun
from botorch_dp.privacy import (
    Certificate,
    Guarantee,
    Ledger,
    LedgerEntry,
    PrivacyAccountant,
    SeededNoise,
    SystemNoise,
)
from botorch_dp.privacy.certificate import WORST_CASE

_MECHANISM = "opacus training run"
_NOISE_NAMES = (SeededNoise.name, SystemNoise.name)
_ASSUMPTIONS = (
    "protects training and validation records; all trained models and all points of "
    "the tuning may be published",
    "the losses of a validation record depend only on that record and on models from "
    "this budget's training runs",
    "row i is the same validation record in every tell",
    "each training run takes its batches, gradients and noise as planned here",
    "all settings were chosen without the private data",
)


class CompositionBudget(JointPlan, JointBudget):
    """A joint budget with ``tuning="composition"``: see :class:`JointBudget`."""

    def __init__(
        self,
        guarantee: Guarantee,
        *,
        num_runs: int | None = None,
        sample_rate: float,
        steps_per_run: int,
        records: str = "shared",
        training_share: float | None = None,
        path: str | os.PathLike[str] | None = None,
        tuning: str | None = None,
        **others: Any,
    ) -> None:
        del tuning, others  # checked by JointBudget
        if num_runs is None:
            raise InvalidArgumentError(
                "num_runs must be given with tuning='composition': the number of "
                "models that may be trained."
            )
        JointPlan.__init__(
            self,
            guarantee,
            num_runs=num_runs,
            sample_rate=sample_rate,
            steps_per_run=steps_per_run,
            records=records,
            training_share=training_share,
        )
        paths = ledger_paths(path, self.records)
        self.training_ledger = Ledger(paths[0], cap=self.guarantee)
        self._check_plan_of_paid_runs()
        self.tuning_ledger = self.training_ledger
        if self.records == "disjoint":
            self.tuning_ledger = Ledger(paths[1], cap=self.guarantee)
        if not len(self.training_ledger):
            # The ledger accounts for the whole plan at once.
            self.training_ledger.reserve(
                self.training_charges(), adjacency=ADJACENCY, run=_MECHANISM
            )

    @property
    def tuning_options(self) -> dict[str, Any]:
        """The arguments of :class:`DPGIBO` with which it spends this budget."""
        return {
            "guarantee": self.tuning,
            "ledger": self.tuning_ledger,
            "adjacency": ADJACENCY,
        }

    @property
    def runs_left(self) -> int:
        """The number of planned training runs that are not paid for yet."""
        return max(0, self.num_runs - len(self._paid_runs()))

    def planned_run(self) -> PlannedRun:
        """Return what one training run costs."""
        return PlannedRun(
            noise_multiplier=self.noise_multiplier,
            sample_rate=self.sample_rate,
            num_steps=self.steps_per_run,
            guarantee=self.guarantee,
        )

    def pay_for_run(self, noise: str) -> None:
        """Charge one training run, or raise."""
        self.charge_run(noise=noise)

    def charge_run(self, *, noise: str = SeededNoise.name) -> None:
        """Pay for one training run: see :meth:`JointBudget.charge_run`."""
        check_choice("noise", noise, _NOISE_NAMES)
        if self.runs_left == 0:
            raise BudgetExceededError(
                f"All {self.num_runs} training runs of the plan have been paid for. "
                "Nothing was charged or drawn."
            )
        self.training_ledger.charge(
            self.step_event(),
            count=self.steps_per_run,
            mechanism=_MECHANISM,
            adjacency=ADJACENCY,
            noise=noise,
        )

    def certificate(self) -> Certificate:
        """Return the certificate of all training and tuning so far."""
        ledgers = [self.training_ledger]
        if self.records == "disjoint":
            ledgers.append(self.tuning_ledger)
        charged = [ledger for ledger in ledgers if len(ledger)] or ledgers[:1]
        certificates = [
            Certificate.from_ledger(
                ledger,
                assumptions=(WORST_CASE, RECORDS[self.records], *_ASSUMPTIONS),
                parameters=self._to_certify(),
            )
            for ledger in charged
        ]
        return certificates[0] if len(certificates) == 1 else larger(*certificates)

    def summary(self) -> str:
        """Return the plan, its cost and the number of paid runs as text."""
        delta = reported_delta(self.guarantee)
        one, all_runs = self.training_accountant(1), self.training_accountant()
        everything = all_runs
        if self.records == "shared":
            everything = all_runs.plus(self.tuning_event())
        tuning = PrivacyAccountant()
        tuning.compose(self.tuning_event())
        combined = "composed" if self.records == "shared" else "the larger of the two"
        share = "" if self.training_share is None else f" ({self.training_share:.0%})"
        total = max(everything.get_epsilon(delta), tuning.get_epsilon(delta))
        return "\n".join(
            [
                f"Joint budget of {self.guarantee!r}, {self.records} records; epsilon "
                f"at delta={delta:.6g}",
                f"  training{share}: epsilon={all_runs.get_epsilon(delta):.6g} for "
                f"{self.num_runs} run(s), {one.get_epsilon(delta):.6g} for one",
                f"    a run: {self.steps_per_run} step(s), sample rate "
                f"{self.sample_rate:.6g}, noise multiplier "
                f"{self.noise_multiplier:.6g}",
                f"  tuning: epsilon={tuning.get_epsilon(delta):.6g}, {self.tuning!r}",
                f"  together: epsilon={total:.6g}, {combined}",
                f"  paid for: {self.num_runs - self.runs_left} of {self.num_runs} "
                "training run(s)",
            ]
        )

    def _paid_runs(self) -> list[LedgerEntry]:
        return [e for e in self.training_ledger.entries if e.mechanism == _MECHANISM]

    def _check_plan_of_paid_runs(self) -> None:
        """Raise if the ledger has runs of another plan, whose cost differs."""
        for entry in self._paid_runs():
            if not self.is_planned_run(entry.event, entry.count):
                raise InvalidArgumentError(
                    "path must belong to the same plan, or be new: "
                    f"{self.training_ledger.path} has a training run of "
                    f"{entry.count} x {entry.event!r}, but runs of this plan are "
                    f"{self.steps_per_run} x {self.step_event()!r}."
                )

    def _to_certify(self) -> dict[str, Any]:
        """Return the plan as parameters of the certificate."""
        return {
            "records": self.records,
            "num_runs": self.num_runs,
            "runs_paid_for": self.num_runs - self.runs_left,
            "steps_per_run": self.steps_per_run,
            "sample_rate": float(f"{self.sample_rate:.6g}"),
            "noise_multiplier": float(f"{self.noise_multiplier:.6g}"),
            "training_share": self.training_share,
            "budget": repr(self.guarantee),
        }
