"""JointBudget: the ledgers, training runs and certificate of a joint plan."""

import os
from dataclasses import replace
from typing import Any, overload

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from botorch_dp._validation import check_choice
from botorch_dp.exceptions import BudgetExceededError, InvalidArgumentError
from botorch_dp.integrations.opacus.plan import JointPlan
from botorch_dp.integrations.opacus.training import (
    Criterion,
    Parts,
    PartsWithCriterion,
    PlannedRun,
    make_private,
)
from botorch_dp.privacy import (
    GDP,
    ApproxDP,
    Certificate,
    Guarantee,
    Ledger,
    LedgerEntry,
    PrivacyAccountant,
    SeededNoise,
    SystemNoise,
)
from botorch_dp.privacy.certificate import WORST_CASE
from botorch_dp.privacy.ledger import DEFAULT_DELTA

ADJACENCY = "zero_out"
_MECHANISM = "opacus training run"
_NOISE_NAMES = (SeededNoise.name, SystemNoise.name)
_RECORDS = {
    "disjoint": "training and validation records are disjoint: each record is in one "
    "of the two sets, so the larger of the two costs is the total cost",
    "shared": "training and validation records may overlap: the costs of training and "
    "tuning are added up",
}
_ASSUMPTIONS = (
    "protects training and validation records; all trained models and all points of "
    "the tuning may be published",
    "the losses of a validation record depend only on that record and on models from "
    "this budget's training runs",
    "row i is the same validation record in every tell",
    "each training run takes its batches, gradients and noise as planned here",
    "all settings were chosen without the private data",
)


class JointBudget(JointPlan):
    r"""One budget for all training runs and all tuning.

    All guarantees are for ``zero_out`` neighbors: one record, of either set,
    contributes nothing, and the numbers of records are public.

    * ``records="disjoint"``: no record is in both sets. Each set may spend the whole
      guarantee, in a ledger of its own, and the total is the larger of the two
      (parallel composition).
    * ``records="shared"``: the sets may overlap. One ledger adds up all costs.

    Args:
        guarantee: The guarantee of everything together: ``ApproxDP`` or ``RDP``; with
            ``sample_rate=1`` also ``GDP``.
        num_runs: The number of models that may be trained. For :class:`DPGIBO` with T
            steps of b points and a last run, b T + 1. An interrupted run counts, and
            so does a run that is repeated after a crash, so add some to spare.
        sample_rate: The probability that a record is in a batch: one over the number of
            batches of an epoch.
        steps_per_run: The number of batches of a run: epochs over ``sample_rate``.
        records: ``"disjoint"``, or ``"shared"``, which is always valid and costs more.
        training_share: With shared records, the share of the squared mu for training,
            0.5 by default. With disjoint records each set gets all of it.
        path: The file of the ledger; for disjoint records there are two files,
            ``<path>.training`` and ``<path>.tuning``. The same plan can open them
            again; another plan raises. None keeps the ledgers in memory.

    Attributes:
        noise_multiplier: The standard deviation of the noise of every training step
            over ``max_grad_norm``.
        tuning: The guarantee of the tuning.
        training_ledger: The ledger of the training runs, capped by the guarantee.
        tuning_ledger: The ledger of the tuning; the same one for shared records.

    Example:
        >>> from botorch_dp import DPGIBO
        >>> budget = JointBudget(
        ...     GDP(mu=1.0),
        ...     num_runs=16,
        ...     sample_rate=1.0,
        ...     steps_per_run=25,
        ...     records="disjoint",
        ... )
        >>> budget.noise_multiplier, budget.training_accountant(num_runs=1).to_gdp()
        (20.0, GDP(mu=0.25))
        >>> bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
        >>> tuner = DPGIBO(
        ...     bounds, 500, num_steps=5, clip_norm=1.0, **budget.tuning_options
        ... )
    """

    def __init__(
        self,
        guarantee: Guarantee,
        *,
        num_runs: int,
        sample_rate: float,
        steps_per_run: int,
        records: str = "shared",
        training_share: float | None = None,
        path: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__(
            guarantee,
            num_runs=num_runs,
            sample_rate=sample_rate,
            steps_per_run=steps_per_run,
            records=records,
            training_share=training_share,
        )
        paths = [None, None] if path is None else self._paths(os.fspath(path))
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

    @overload
    def make_private(
        self,
        *,
        module: nn.Module,
        optimizer: Optimizer,
        criterion: Criterion,
        data_loader: DataLoader[Any],
        max_grad_norm: float,
        loss_reduction: str = ...,
        generator: torch.Generator | None = ...,
    ) -> PartsWithCriterion: ...

    @overload
    def make_private(
        self,
        *,
        module: nn.Module,
        optimizer: Optimizer,
        criterion: None = ...,
        data_loader: DataLoader[Any],
        max_grad_norm: float,
        loss_reduction: str = ...,
        generator: torch.Generator | None = ...,
    ) -> Parts: ...

    def make_private(
        self,
        *,
        module: nn.Module,
        optimizer: Optimizer,
        criterion: Criterion | None = None,
        data_loader: DataLoader[Any],
        max_grad_norm: float,
        loss_reduction: str = "mean",
        generator: torch.Generator | None = None,
    ) -> Parts | PartsWithCriterion:
        """Pay for one training run and return its private parts.

        See :func:`~botorch_dp.integrations.opacus.training.make_private` for what
        these parts do and require. The whole run is charged first.

        Args:
            module: The model to train. Its parameters may depend on private data only
                through releases, and it must not store anything of a batch: a buffer
                that changes raises at the next step.
            optimizer: A ``torch.optim`` optimizer of its parameters, in single or
                double precision.
            criterion: The loss, with ``reduction="none"``: a loss module of torch, or a
                function of outputs and targets whose result has the batch as its first
                dimension. With None, you compute a loss that is a sum or mean over
                records yourself.
            data_loader: A loader over all training records, with batches that match
                ``sample_rate``. For a part of a data set, use a ``Subset``.
            max_grad_norm: The norm to which a record's gradient is clipped.
            loss_reduction: The reduction of the loss over a batch: ``"mean"`` or
                ``"sum"``.
            generator: Seeds noise and batches, for experiments only.

        Returns:
            The module, the optimizer, the criterion if one was given, and the loader to
            train with.

        Raises:
            BudgetExceededError: If no run is left; nothing is charged.
        """
        return make_private(
            module=module,
            optimizer=optimizer,
            criterion=criterion,
            data_loader=data_loader,
            max_grad_norm=max_grad_norm,
            loss_reduction=loss_reduction,
            generator=generator,
            plan=PlannedRun(
                noise_multiplier=self.noise_multiplier,
                sample_rate=self.sample_rate,
                num_steps=self.steps_per_run,
                guarantee=self.guarantee,
            ),
            pay=lambda noise: self.charge_run(noise=noise),
        )

    def charge_run(self, *, noise: str = SeededNoise.name) -> None:
        """Pay for one training run that :meth:`make_private` does not prepare.

        Use this before the first step with Opacus's own ``PrivacyEngine``, given
        ``noise_multiplier`` and ``poisson_sampling=True``. You must then ensure that
        the run takes at most ``steps_per_run`` steps, and everything else that
        :meth:`make_private` checks. Processes that start a run at the same moment may
        pay for one run more than planned, but never exceed the cap.

        Args:
            noise: The source of noise and batches: ``"seeded"`` for torch's generators,
                which Opacus uses, or ``"system"`` for entropy of the operating system.

        Raises:
            BudgetExceededError: If no run is left; nothing is charged.
        """
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
                assumptions=(WORST_CASE, _RECORDS[self.records], *_ASSUMPTIONS),
                parameters=self._to_certify(),
            )
            for ledger in charged
        ]
        return certificates[0] if len(certificates) == 1 else _larger(*certificates)

    def summary(self) -> str:
        """Return the plan, its cost and the number of paid runs as text."""
        delta = self._delta
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

    def __str__(self) -> str:
        return self.summary()

    @property
    def _delta(self) -> float:
        guarantee = self.guarantee
        return guarantee.delta if isinstance(guarantee, ApproxDP) else DEFAULT_DELTA

    def _paths(self, path: str) -> list[str]:
        shared, disjoint = [path, path], [f"{path}.training", f"{path}.tuning"]
        own, other = shared, disjoint
        if self.records == "disjoint":
            own, other = disjoint, shared
        found = next((name for name in other if os.path.isfile(name)), None)
        if found is not None:
            raise InvalidArgumentError(
                f"path must be new for records={self.records!r}, got {path!r}: the "
                f"file {found!r} belongs to a budget with the other kind of records, "
                "whose spending would not count."
            )
        return own

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


def _larger(training: Certificate, tuning: Certificate) -> Certificate:
    """Return the certificate of records each of which is in one of two sets."""
    if tuning.adjacency != training.adjacency:
        raise InvalidArgumentError(
            f"tuning_ledger must have charges for adjacency={training.adjacency!r}, "
            f"got {tuning.adjacency!r}. Pass tuning_options to the optimizer."
        )
    totals = [c.guarantee for c in (training, tuning) if isinstance(c.guarantee, GDP)]
    sets = {"training": training, "tuning": tuning}
    return replace(
        training,
        guarantee=max(totals, key=lambda g: g.mu) if len(totals) == 2 else None,
        epsilons={
            delta: max(epsilon, tuning.epsilons[delta])
            for delta, epsilon in training.epsilons.items()
        },
        accountant="the larger of "
        + " and ".join(f"{name}: {c.accountant}" for name, c in sets.items()),
        assumptions=tuple(dict.fromkeys((*training.assumptions, *tuning.assumptions))),
        noise=tuple(sorted({*training.noise, *tuning.noise})),
        num_releases=training.num_releases + tuning.num_releases,
        parameters={
            **training.parameters,
            **{
                f"epsilon_of_{name}": [
                    f"{epsilon:.6g} at delta={delta:.3g}"
                    for delta, epsilon in c.epsilons.items()
                ]
                for name, c in sets.items()
            },
        },
    )
