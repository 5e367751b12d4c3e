"""JointBudget: one guarantee for training with Opacus and for tuning."""

import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from botorch_dp._deprecated import warn_deprecated
from botorch_dp._validation import check_choice
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.integrations.opacus.options import TrainingOptions, plan_training
from botorch_dp.integrations.opacus.training import MakesPrivate
from botorch_dp.optimizers.selection.result import SelectionResult
from botorch_dp.privacy import ApproxDP, Certificate, Count, Guarantee, Ledger
from botorch_dp.privacy.ledger import DEFAULT_DELTA

TUNINGS = ("selection", "composition")
_OF_SELECTION = (
    "num_records",
    "num_validation_records",
    "count",
    "score_range",
    "score_noise",
    "pad_to",
)
_OF_COMPOSITION = ("num_runs", "training_share")
_REASONS = {
    "selection": "the number of runs is random; give its distribution as count, or use "
    "tuning='composition', which pays for every run",
    "composition": "it belongs to tuning='selection'",
}


class JointBudget(MakesPrivate):
    r"""One budget for all training runs and all tuning.

    * ``tuning="selection"`` (the default) trains a random number of models, each at a
      random candidate, and releases the best one. It costs about as much as one to two
      runs, whatever the number of runs is. Nothing else may be shown.
    * ``tuning="composition"`` pays for every run, for those who need every model, or
      who tune with :class:`DPGIBO`. The cost grows with the square root of the number
      of runs.

    All guarantees are for ``zero_out`` neighbors: one record, of either set,
    contributes nothing, and the numbers of records are public.

    * ``records="shared"``: training and validation records may be the same. Costs of
      training and of scores are added up.
    * ``records="disjoint"``: no record is in both sets. Each set may spend the whole
      guarantee, in a ledger of its own, and the total is the larger of the two
      (parallel composition).

    Args:
        guarantee: The guarantee of everything together: ``ApproxDP`` or ``RDP``; for a
            composition with ``sample_rate=1`` also ``GDP``.
        sample_rate: The probability that a record is in a batch: one over the number of
            batches of an epoch.
        steps_per_run: The number of batches of a run: epochs over ``sample_rate``.
        tuning: ``"selection"`` or ``"composition"``.
        records: ``"shared"``, which is always valid, or ``"disjoint"``.
        path: The file of the ledger; for disjoint records there are two files,
            ``<path>.training`` and ``<path>.tuning``. The same plan can open them
            again; another plan raises. None keeps the ledgers in memory.
        num_records: Selection: the public number of training records.
        num_validation_records: Selection: the number of records over which a score is a
            mean; by default ``num_records``. With disjoint records it must be given.
        count: Selection: the distribution of the number of runs; by default
            :func:`recommended_count`.
        score_range: Selection: the public range to which each record's score is
            clipped.
        score_noise: Selection: the standard deviation of the noise of a score. By
            default 0.5 % of the range, or more if that would cost more than a tenth of
            the guarantee's mu.
        pad_to: Selection: always make this many runs, of which a random number counts,
            so that the running time shows nothing.
        num_runs: Composition: the number of models that may be trained. For
            :class:`DPGIBO` with T steps of b points and a last run, b T + 1. An
            interrupted run counts, and so does a run that is repeated after a crash.
        training_share: Composition: with shared records, the share of the squared mu
            for training, 0.5 by default. With disjoint records each set gets all of it.

    Attributes:
        noise_multiplier: The standard deviation of the noise of every training step
            over ``max_grad_norm``.
        training_ledger: The ledger of the training runs, capped by the guarantee.
        tuning_ledger: The ledger of the tuning; the same one for shared records.
        tuning: Composition: the guarantee of the tuning.

    Example:
        >>> from botorch_dp.integrations.opacus import adam_guess
        >>> from torch import nn
        >>> from torch.utils.data import DataLoader, TensorDataset
        >>> x, y = torch.randn(500, 3), torch.randint(2, (500,))  # private
        >>> loader = DataLoader(TensorDataset(x, y), batch_size=125)
        >>> budget = JointBudget(
        ...     ApproxDP(epsilon=4.0, delta=1e-5),
        ...     sample_rate=1 / 4,
        ...     steps_per_run=4,
        ...     num_records=500,
        ... )
        >>> def train_and_score(rate, run):
        ...     model = nn.Linear(3, 2)
        ...     model, optimizer, criterion, batches = run.make_private(
        ...         module=model,
        ...         optimizer=torch.optim.Adam(model.parameters(), lr=rate),
        ...         criterion=nn.CrossEntropyLoss(reduction="none"),
        ...         data_loader=loader,
        ...         max_grad_norm=1.0,
        ...     )
        ...     for inputs, targets in batches:
        ...         optimizer.zero_grad()
        ...         criterion(model(inputs), targets).backward()
        ...         optimizer.step()
        ...     with torch.no_grad():
        ...         scores = (model(x).argmax(-1) == y).double()
        ...     return run.score(scores), model
        >>> result = budget.select([0.03, 0.1, 0.3], train_and_score)
        >>> result.x in [0.03, 0.1, 0.3]
        True
    """

    guarantee: Guarantee
    sample_rate: float
    steps_per_run: int
    records: str
    noise_multiplier: float
    training_ledger: Ledger
    tuning_ledger: Ledger

    def __new__(cls, *args: Any, **kwargs: Any) -> "JointBudget":
        """Return a budget of the class that plans this kind of tuning."""
        if cls is not JointBudget:
            return object.__new__(cls)
        from botorch_dp.integrations.opacus.composition import CompositionBudget
        from botorch_dp.integrations.opacus.selection import SelectionBudget

        tuning = kwargs.get("tuning")
        if tuning is None:
            tuning = "selection"
            if kwargs.get("num_runs") is not None:
                warn_deprecated(
                    "num_runs without tuning", "tuning='composition' with num_runs"
                )
                tuning = "composition"
        check_choice("tuning", tuning, TUNINGS)
        wrong = _OF_COMPOSITION if tuning == "selection" else _OF_SELECTION
        for name in wrong:
            if kwargs.get(name) is not None:
                raise InvalidArgumentError(
                    f"{name} must be None with tuning={tuning!r}, got "
                    f"{kwargs[name]!r}: {_REASONS[tuning]}."
                )
        if tuning == "selection":
            return object.__new__(SelectionBudget)
        return object.__new__(CompositionBudget)

    def __init__(
        self,
        guarantee: Guarantee,
        *,
        sample_rate: float,
        steps_per_run: int,
        tuning: str | None = None,
        records: str = "shared",
        path: str | os.PathLike[str] | None = None,
        num_records: int | None = None,
        num_validation_records: int | None = None,
        count: Count | None = None,
        score_range: tuple[float, float] | None = None,
        score_noise: float | None = None,
        pad_to: int | None = None,
        num_runs: int | None = None,
        training_share: float | None = None,
    ) -> None:
        raise NotImplementedError  # each kind of budget has its own

    @staticmethod
    def plan(guarantee: Guarantee, **facts: Any) -> TrainingOptions:
        """Return the noise of each way to spend a guarantee, and recommend one.

        Args:
            guarantee: The guarantee of everything together.
            **facts: The arguments of :func:`plan_training`.
        """
        return plan_training(guarantee, **facts)

    def select(
        self,
        candidates: Sequence[Any] | Tensor | None,
        train_and_score: Callable[[Any, Any], Any],
        *,
        bounds: Tensor | None = None,
        transform: str | Sequence[str] = "linear",
        default: Any = None,
        n_jobs: int = 1,
        generator: torch.Generator | None = None,
    ) -> SelectionResult:
        """Train at random candidates, and release the best model; for a selection.

        ``train_and_score(x, run)`` trains at the candidate x with
        ``run.make_private(...)``, computes a score of each record, and returns
        ``run.score(scores)``, or a pair of it and the model. It must be private by
        itself, and keep and show nothing: models of other runs must not survive.

        Args:
            candidates: The values of x: a list of anything, or an ``m x d`` tensor.
            train_and_score: The function of a candidate and a :class:`SelectionRun`.
            bounds: A ``2 x d`` box instead of candidates, in which x is uniform.
            transform: The coordinates in which x is uniform in the box.
            default: The x that is released if no run is made, by default the first
                candidate or the centre of the box.
            n_jobs: How many runs joblib makes at a time.
            generator: Seeds the selection, and its runs unless they are given other
                generators; for experiments only.

        Returns:
            The candidate, the model and the score of the best run, and a certificate.

        Raises:
            BudgetExceededError: If the budget was spent before. No model is trained.
        """
        raise _other_kind("select", "selection")

    @property
    def tuning_options(self) -> dict[str, Any]:
        """The arguments of :class:`DPGIBO` that spend this budget; for compositions."""
        raise _other_kind("tuning_options", "composition")

    @property
    def runs_left(self) -> int:
        """The number of planned runs that are not paid for yet; for compositions."""
        raise _other_kind("runs_left", "composition")

    def charge_run(self, *, noise: str = "seeded") -> None:
        """Pay for one training run that :meth:`make_private` does not prepare.

        Only for compositions. Use this before the first step with Opacus's own
        ``PrivacyEngine``, given ``noise_multiplier`` and ``poisson_sampling=True``. You
        must then ensure that the run takes at most ``steps_per_run`` steps, and
        everything else that :meth:`make_private` checks. Processes that start a run at
        the same moment may pay for one run more than planned, but never exceed the cap.

        Args:
            noise: The source of noise and batches: ``"seeded"`` for torch's generators,
                which Opacus uses, or ``"system"`` for entropy of the operating system.

        Raises:
            BudgetExceededError: If no run is left; nothing is charged.
        """
        raise _other_kind("charge_run", "composition")

    def certificate(self) -> Certificate:
        """Return the certificate of all training and tuning so far."""
        raise NotImplementedError

    def summary(self) -> str:
        """Return the plan, its cost and what was paid as text."""
        raise NotImplementedError

    def __str__(self) -> str:
        return self.summary()


def reported_delta(guarantee: Guarantee) -> float:
    """Return the delta at which a budget reports epsilons."""
    return guarantee.delta if isinstance(guarantee, ApproxDP) else DEFAULT_DELTA


def _other_kind(name: str, tuning: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"{name} is only available with tuning={tuning!r}.")
