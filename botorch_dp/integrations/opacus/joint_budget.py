"""JointBudget: the plan, its ledgers and its certificate."""

import math
import os
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from botorch_dp._validation import (
    check_choice,
    check_clip_norm,
    check_count,
    check_positive,
    check_probability,
)
from botorch_dp.exceptions import BudgetExceededError, InvalidArgumentError
from botorch_dp.integrations.opacus.batches import (
    PoissonBatches,
    check_loader,
    num_prefetched,
    poisson_loader,
    read_record,
)
from botorch_dp.integrations.opacus.modules import check_module
from botorch_dp.integrations.opacus.private_module import Passes, PrivateModule
from botorch_dp.integrations.opacus.steps import BudgetedOptimizer
from botorch_dp.privacy import (
    GDP,
    ApproxDP,
    Certificate,
    GaussianEvent,
    Guarantee,
    Ledger,
    LedgerEntry,
    PoissonGaussianEvent,
    PrivacyAccountant,
    PrivacyEvent,
    SeededNoise,
    SystemNoise,
    noise_multiplier_for,
)
from botorch_dp.privacy.budget import check_gaussian, warn_of_large_delta
from botorch_dp.privacy.certificate import WORST_CASE
from botorch_dp.privacy.ledger import DEFAULT_DELTA
from botorch_dp.privacy.noise import make_noise_source

ADJACENCY = "zero_out"
_MECHANISM = "opacus training run"
_DEFAULT_SHARE = 0.5
_NOISE_TOLERANCE = 1e-3  # of the noise multiplier
_SAME_NOISE = 1e-6  # relative: what other machines may find for the same plan
_REDUCTIONS = ("mean", "sum")
_NOISE_NAMES = (SeededNoise.name, SystemNoise.name)
_RECORDS = {
    "disjoint": "training and validation records are disjoint: each is in one of the "
    "two sets, so that the larger of the two costs is the cost of everything",
    "shared": "training and validation records may be the same: the costs of training "
    "and of tuning are added up",
}
_ASSUMPTIONS = (
    "protects training and validation records; all trained models and all points of "
    "the tuning may be published",
    "what is told of a validation record depends on that record and on models from "
    "this budget's training runs alone",
    "row i is the same validation record in every tell",
    "each training run takes its batches, gradients and noise as planned here",
    "all settings were chosen without the private data",
)


class JointBudget:
    r"""Plans and keeps one budget for all training runs and all tuning.

    Everything is stated for ``zero_out`` neighbours: one record, of whichever set,
    contributes nothing, and the numbers of records are public.

    * ``records="disjoint"``: no record is in both sets. Each set may spend the whole
      guarantee, in a ledger of its own, and the total is the larger of the two
      (parallel composition).
    * ``records="shared"``: they may overlap. There is one ledger, where costs add up.

    Args:
        guarantee: What everything together has to meet: ``ApproxDP`` or ``RDP``; with
            ``sample_rate=1`` also ``GDP``.
        num_runs: How many models may be trained. For :class:`DPGIBO` with T steps of b
            points and a last run, b T + 1. A run that is interrupted counts, and so
            does one that is repeated when a crashed search goes on: add some to spare.
        sample_rate: The probability that a batch has a record: one over the number of
            batches of an epoch.
        steps_per_run: The number of batches of a run: epochs over ``sample_rate``.
        records: ``"disjoint"`` or ``"shared"``, which is always right and costs more.
        training_share: With shared records, the share of the squared mu that training
            gets, 0.5 by default. With disjoint ones each set gets all of it.
        path: A file that keeps the ledger; two of them, ``<path>.training`` and
            ``<path>.tuning``, for disjoint records. The same plan opens them again,
            another one is refused. None keeps them in memory.

    Attributes:
        noise_multiplier: Of every training step: the standard deviation of the noise
            over ``max_grad_norm``.
        tuning: The guarantee that tuning has to meet.
        training_ledger: What training runs are charged to, capped by the guarantee.
        tuning_ledger: What tuning is charged to; the same one for shared records.

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
        self.guarantee = check_gaussian(guarantee, secure=False)
        self.num_runs = check_count("num_runs", num_runs)
        self.sample_rate = check_positive("sample_rate", sample_rate)
        if self.sample_rate > 1:
            raise InvalidArgumentError(
                f"sample_rate must be at most 1, got {sample_rate!r}."
            )
        if self.sample_rate < 1 and isinstance(guarantee, GDP):
            raise InvalidArgumentError(
                "guarantee must be an ApproxDP or an RDP with sample_rate below 1: "
                "noise on a sample of the records is not Gaussian differentially "
                f"private, got {guarantee!r}."
            )
        self.steps_per_run = check_count("steps_per_run", steps_per_run)
        self.records = check_choice("records", records, tuple(_RECORDS))
        self.training_share = self._check_share(training_share)
        self.tuning = self._plan_tuning()
        self.noise_multiplier = self._plan_noise()
        paths = [None, None] if path is None else self._paths(os.fspath(path))
        self.training_ledger = Ledger(paths[0], cap=self.guarantee)
        self._check_plan_of_paid_runs()
        self.tuning_ledger = self.training_ledger
        if self.records == "disjoint":
            self.tuning_ledger = Ledger(paths[1], cap=self.guarantee)
        if not len(self.training_ledger):
            self._reserve()

    @property
    def tuning_options(self) -> dict[str, Any]:
        """The arguments of :class:`DPGIBO` that make it spend from this budget."""
        return {
            "guarantee": self.tuning,
            "ledger": self.tuning_ledger,
            "adjacency": ADJACENCY,
        }

    @property
    def runs_left(self) -> int:
        """How many training runs of the plan have not been paid for."""
        return max(0, self.num_runs - len(self._paid_runs()))

    def training_accountant(self, num_runs: int | None = None) -> PrivacyAccountant:
        """Return an accountant that has composed planned runs, by default all."""
        runs = self.num_runs if num_runs is None else check_count("num_runs", num_runs)
        accountant = PrivacyAccountant()
        accountant.compose(self._event(), runs * self.steps_per_run)
        return accountant

    def make_private(
        self,
        *,
        module: nn.Module,
        optimizer: Optimizer,
        data_loader: DataLoader[Any],
        max_grad_norm: float,
        loss_reduction: str = "mean",
        generator: torch.Generator | None = None,
    ) -> tuple[PrivateModule, BudgetedOptimizer, DataLoader[Any]]:
        """Pay for one training run, and return its parts.

        As Opacus's ``PrivacyEngine.make_private``, with flat clipping and in a single
        process. What differs: the whole run is charged first; noise and batches come
        from the operating system's entropy; what is not finite in a gradient counts as
        zero; a step after the last planned one, or with other noise, norm or batches
        than planned as far as can be seen, is refused before any parameter changes; and
        no gradient stays on the module after a step, or after that of a part. Between
        ``backward()`` and the step they are there: save its ``state_dict()`` then, not
        the module.

        The loader gives as many batches an epoch as the given one, each for one
        ``step()``, empty ones too; other batches, and the given optimizer's own
        ``step()``, are refused. Parts of batches (``signal_skip_step``) are for
        Opacus's ``BatchMemoryManager`` only, each of whose batches must have its step.
        The loss must be a sum or mean over records, all of which pass through every
        layer in the order of the batch, and learning rates and stopping must not follow
        training losses. Losses of torch that divide by the weights of classes, or by
        the number of targets that are not ignored, are refused. With
        ``sample_rate=1`` the first call of the module is preceded by calls with other
        batch sizes, to see that every layer has the batch first.

        Args:
            module: The model to train, with parameters that do not depend on private
                data except through releases. It may keep nothing of a batch: a buffer
                that changes is refused at the next step.
            optimizer: A ``torch.optim`` optimizer of its parameters, in single or
                double precision.
            data_loader: Over the training records, each of them once, with batches that
                make ``sample_rate``; for some records of a data set, over a ``Subset``.
            max_grad_norm: The norm to which a record's gradient is clipped.
            loss_reduction: How the loss sums up a batch: ``"mean"`` or ``"sum"``.
            generator: Seeds noise and batches: for experiments only.

        Returns:
            The module, the optimizer and the loader to train with.

        Raises:
            BudgetExceededError: If no run is left; nothing is charged.
        """
        check_choice("loss_reduction", loss_reduction, _REDUCTIONS)
        device = check_module(module, optimizer)
        num_records = check_loader(data_loader, sample_rate=self.sample_rate)
        warn_of_large_delta(self.guarantee, num_records)
        max_grad_norm = check_clip_norm("max_grad_norm", max_grad_norm)
        source = make_noise_source(generator, secure=False)
        source.check_device(device)
        batches = PoissonBatches(
            num_records=num_records,
            sample_rate=self.sample_rate,
            num_batches=len(data_loader),
            noise_source=source,
            device=device,
        )
        loader = poisson_loader(data_loader, batches)
        self.charge_run(noise=source.name)
        passes = Passes(batches, read=partial(read_record, loader))
        private_module = PrivateModule(
            module, loss_reduction=loss_reduction, passes=passes
        )
        private_optimizer = BudgetedOptimizer(
            optimizer,
            module=module,
            passes=passes,
            batches=batches,
            num_prefetched=num_prefetched(loader),
            num_steps=self.steps_per_run,
            noise_source=source,
            noise_multiplier=self.noise_multiplier,
            max_grad_norm=max_grad_norm,
            expected_batch_size=self.sample_rate * num_records,
            loss_reduction=loss_reduction,
        )
        return private_module, private_optimizer, loader

    def charge_run(self, *, noise: str = SeededNoise.name) -> None:
        """Pay for one training run that :meth:`make_private` does not prepare.

        For Opacus's own ``PrivacyEngine``, given ``noise_multiplier`` and
        ``poisson_sampling=True``: that it takes no more than ``steps_per_run`` steps,
        and everything else that :meth:`make_private` checks and clears, is up to you.
        Call it before the first step. Processes that begin a run at the same moment may
        pay for one more than planned; none can pass the cap.

        Args:
            noise: Where noise and batches come from: ``"seeded"`` for torch's
                generators, which Opacus uses, or ``"system"`` for entropy of the
                operating system.

        Raises:
            BudgetExceededError: If no run is left; nothing is charged.
        """
        check_choice("noise", noise, _NOISE_NAMES)
        if self.runs_left == 0:
            raise BudgetExceededError(
                f"All {self.num_runs} training runs of the plan have been paid for. "
                "Nothing was charged and nothing drawn."
            )
        self.training_ledger.charge(
            self._event(),
            count=self.steps_per_run,
            mechanism=_MECHANISM,
            adjacency=ADJACENCY,
            noise=noise,
        )

    def certificate(self) -> Certificate:
        """Return what is guaranteed of all training and tuning so far."""
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
        """Return the plan, what it costs and what was paid for, as text."""
        delta = self._delta
        one, all_runs = self.training_accountant(1), self.training_accountant()
        everything = all_runs
        if self.records == "shared":
            everything = all_runs.plus(self._tuning_event())
        tuning = PrivacyAccountant()
        tuning.compose(self._tuning_event())
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

    def _reserve(self) -> None:
        """Let the ledger account for everything that is planned as one."""
        plan: list[tuple[PrivacyEvent, int]] = [
            (self._event(), self.num_runs * self.steps_per_run)
        ]
        if self.records == "shared":
            plan.append((self._tuning_event(), 1))
        self.training_ledger.reserve(plan, adjacency=ADJACENCY, run=_MECHANISM)

    def _event(self) -> PoissonGaussianEvent:
        return PoissonGaussianEvent(self.noise_multiplier, self.sample_rate)

    def _tuning_event(self) -> GaussianEvent:
        """Return what all of the tuning costs: one Gaussian release."""
        return GaussianEvent(1 / self.tuning.to_gdp().mu)

    def _plan_tuning(self) -> Guarantee:
        if self.training_share is None:
            return self.guarantee
        mu = self.guarantee.to_gdp().mu
        return GDP(mu * math.sqrt(1 - self.training_share))

    def _plan_noise(self) -> float:
        num_releases = self.num_runs * self.steps_per_run
        if self.sample_rate == 1:  # exactly: squares of mu add up
            share = 1.0 if self.training_share is None else self.training_share
            return math.sqrt(num_releases / share) / self.guarantee.to_gdp().mu
        beside = None if self.training_share is None else self._tuning_event()
        return _least_noise(self.guarantee, self.sample_rate, num_releases, beside)

    def _check_share(self, share: float | None) -> float | None:
        if self.records == "shared":
            share = _DEFAULT_SHARE if share is None else share
            return check_probability("training_share", share)
        if share is not None:
            raise InvalidArgumentError(
                "training_share must be None for disjoint records, which may spend "
                f"the whole guarantee each, got {share!r}."
            )
        return None

    def _paths(self, path: str) -> list[str]:
        shared, disjoint = [path, path], [f"{path}.training", f"{path}.tuning"]
        own, other = shared, disjoint
        if self.records == "disjoint":
            own, other = disjoint, shared
        found = next((name for name in other if os.path.isfile(name)), None)
        if found is not None:
            raise InvalidArgumentError(
                f"path must be a new one for records={self.records!r}, got {path!r}: "
                f"the file {found!r} is from a budget with the other kind of records, "
                "and what it has spent would not count."
            )
        return own

    def _paid_runs(self) -> list[LedgerEntry]:
        return [e for e in self.training_ledger.entries if e.mechanism == _MECHANISM]

    def _check_plan_of_paid_runs(self) -> None:
        """Raise if the ledger has runs of another plan, which cost something else."""
        planned = self._event()
        for entry in self._paid_runs():
            event = entry.event
            if (
                not isinstance(event, PoissonGaussianEvent)
                or event.sampling_rate != planned.sampling_rate
                or not math.isclose(
                    event.noise_multiplier,
                    planned.noise_multiplier,
                    rel_tol=_SAME_NOISE,
                )
                or entry.count != self.steps_per_run
            ):
                raise InvalidArgumentError(
                    "path must be that of the same plan, or of a new file: "
                    f"{self.training_ledger.path} has a training run of "
                    f"{entry.count} x {event!r}, and this plan has runs of "
                    f"{self.steps_per_run} x {planned!r}."
                )

    def _to_certify(self) -> dict[str, Any]:
        """Return the plan, for a reader of the certificate."""
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


@lru_cache(maxsize=64)
def _least_noise(
    guarantee: Guarantee,
    sample_rate: float,
    num_releases: int,
    beside: GaussianEvent | None,
) -> float:
    """Return the noise multiplier of sampled steps that meet a guarantee together."""
    accountant = PrivacyAccountant()
    if beside is not None:
        accountant.compose(beside)
    return noise_multiplier_for(
        guarantee,
        sampling_rate=sample_rate,
        num_releases=num_releases,
        beside=accountant,
        tolerance=_NOISE_TOLERANCE,
    )


def _larger(training: Certificate, tuning: Certificate) -> Certificate:
    """Return what holds of records that are in one of two sets."""
    if tuning.adjacency != training.adjacency:
        raise InvalidArgumentError(
            f"tuning_ledger must have charges for adjacency={training.adjacency!r}, "
            f"got {tuning.adjacency!r}, of which no joint certificate can be made: "
            "give the optimizer tuning_options."
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
