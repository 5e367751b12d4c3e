"""A joint budget that selects: the best of a random number of training runs."""

import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from botorch_dp._validation import check_callable, check_choice, check_count
from botorch_dp.exceptions import BudgetExceededError, InvalidArgumentError
from botorch_dp.integrations.opacus.joint_budget import JointBudget, reported_delta
from botorch_dp.integrations.opacus.ledgers import RECORDS, larger, ledger_paths
from botorch_dp.integrations.opacus.options import recommended_count
from botorch_dp.integrations.opacus.plan import check_sample_rate
from botorch_dp.integrations.opacus.score import plan_score
from botorch_dp.integrations.opacus.selection_run import JointSelection, TrainAndScore
from botorch_dp.integrations.opacus.training import PlannedRun
from botorch_dp.optimizers.selection.result import SelectionResult
from botorch_dp.privacy import (
    GDP,
    AtMost,
    Certificate,
    Count,
    Guarantee,
    Ledger,
    PrivacyAccountant,
    SelectionEvent,
    least_noise,
)
from botorch_dp.privacy.budget import check_gaussian, warn_of_large_delta

_RANGE = (0.0, 1.0)
_ASSUMPTIONS = (
    "protects training and validation records; only the selected model, its candidate "
    "and its score are released, and models of other runs were deleted",
    "the score of a record depends only on that record and on the model of its run",
    "each training run takes its batches, gradients and noise as planned here",
)


class SelectionBudget(JointBudget):
    """A joint budget with ``tuning="selection"``: see :class:`JointBudget`."""

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
        del tuning, num_runs, training_share  # checked by JointBudget
        self.guarantee = check_gaussian(guarantee, secure=False)
        if isinstance(guarantee, GDP):
            raise InvalidArgumentError(
                "guarantee must be an ApproxDP or an RDP with tuning='selection', got "
                f"{guarantee!r}: a selection does not satisfy Gaussian differential "
                "privacy."
            )
        self.sample_rate = check_sample_rate(sample_rate)
        self.steps_per_run = check_count("steps_per_run", steps_per_run)
        self.records = check_choice("records", records, tuple(RECORDS))
        num_scored = self._check_numbers(num_records, num_validation_records)
        warn_of_large_delta(self.guarantee, self.num_records)
        self.pad_to = None if pad_to is None else check_count("pad_to", pad_to)
        self.count = recommended_count() if count is None else count
        counted = self.count if pad_to is None else AtMost(self.count, pad_to)
        self._counted = counted
        is_shared = self.records == "shared"
        self.score_plan = plan_score(
            self.guarantee,
            num_records=num_scored,
            score_range=_RANGE if score_range is None else score_range,
            noise_std=score_noise,
            # With disjoint records, a validation record pays for scores alone.
            least_multiplier=0.0
            if is_shared
            else least_noise(
                self.guarantee, sampling_rate=1.0, num_steps=1, count=counted
            ),
        )
        self.noise_multiplier = least_noise(
            self.guarantee,
            sampling_rate=self.sample_rate,
            num_steps=self.steps_per_run,
            score=self.score_plan.event if is_shared else None,
            count=counted,
        )
        paths = ledger_paths(path, self.records)
        self.training_ledger = self.tuning_ledger = Ledger(paths[0], cap=guarantee)
        if not is_shared:
            self.tuning_ledger = Ledger(paths[1], cap=guarantee)
            self._check_scores()

    def planned_run(self) -> PlannedRun:
        """Return what one training run costs."""
        return PlannedRun(
            noise_multiplier=self.noise_multiplier,
            sample_rate=self.sample_rate,
            num_steps=self.steps_per_run,
        )

    def pay_for_run(self, noise: str) -> None:
        """Raise: a selection pays for all runs at once."""
        raise InvalidArgumentError(
            "make_private must be called on the run that select() passes to "
            "train_and_score, because a selection pays for all of its runs at once."
        )

    def charges(self) -> list[tuple[Ledger, SelectionEvent]]:
        """Return the planned charges: a ledger and a selection for each set."""
        training = (self.planned_run().step_event, self.steps_per_run)
        score = (self.score_plan.event, 1)
        if self.records == "shared":
            event = SelectionEvent((training, score), self._counted)
            return [(self.training_ledger, event)]
        return [
            (self.training_ledger, SelectionEvent((training,), self._counted)),
            (self.tuning_ledger, SelectionEvent((score,), self._counted)),
        ]

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
        """Train at random candidates, and release the best model."""
        check_callable("train_and_score", train_and_score)
        if any(len(ledger) for ledger, _ in self.charges()):
            raise BudgetExceededError(
                f"{self.guarantee!r} was spent by an earlier selection, which used all "
                "of it. Nothing was charged or trained."
            )
        selection = JointSelection(
            candidates,
            bounds=bounds,
            transform=transform,
            default=default,
            n_jobs=n_jobs,
            generator=generator,
            count=self.count,
            pad_to=self.pad_to,
            charges=self.charges(),
            certify=self.certify,
        )
        return selection.run(
            TrainAndScore(
                train_and_score,
                self.planned_run(),
                self.score_plan,
                is_seeded=generator is not None,
            )
        )

    def certificate(self) -> Certificate:
        """Return the certificate of what was charged so far."""
        return self.certify((), {})

    def certify(
        self, assumptions: tuple[str, ...], parameters: dict[str, Any]
    ) -> Certificate:
        """Return the certificate with further assumptions and parameters."""
        certificates = [
            Certificate.from_ledger(
                ledger,
                assumptions=(*assumptions, RECORDS[self.records], *_ASSUMPTIONS),
                parameters={**parameters, **self._to_certify()},
            )
            for ledger, _ in self.charges()
        ]
        return certificates[0] if len(certificates) == 1 else larger(*certificates)

    def summary(self) -> str:
        """Return the plan, its cost and whether it was paid as text."""
        delta = reported_delta(self.guarantee)
        lines = [
            f"Joint budget of {self.guarantee!r}, {self.records} records; epsilon at "
            f"delta={delta:.6g}",
            f"  the best of {self.count!r}, {self._counted.mean:.4g} runs on average",
            f"    a run: {self.steps_per_run} step(s), sample rate "
            f"{self.sample_rate:.6g}, noise multiplier {self.noise_multiplier:.6g}",
            f"    its score: a mean over {self.score_plan.num_records} records, noise "
            f"{self.score_plan.noise_std:.4g}",
        ]
        names = ["together"] if self.records == "shared" else ["training", "scores"]
        for name, (_, event) in zip(names, self.charges(), strict=True):
            one, all_runs = PrivacyAccountant(), PrivacyAccountant()
            for release, number in event.base:
                one.compose(release, number)
            all_runs.compose(event)
            lines.append(
                f"  {name}: epsilon={all_runs.get_epsilon(delta):.6g}, "
                f"{one.get_epsilon(delta):.6g} for one run"
            )
        paid = "paid for" if len(self.training_ledger) else "not paid for yet"
        return "\n".join([*lines, f"  {paid}"])

    def _check_numbers(
        self, num_records: int | None, num_validation_records: int | None
    ) -> int:
        """Return the number of records with a score."""
        if num_records is None:
            raise InvalidArgumentError(
                "num_records must be given with tuning='selection': the public number "
                "of training records."
            )
        self.num_records = check_count("num_records", num_records)
        if num_validation_records is not None:
            return check_count("num_validation_records", num_validation_records)
        if self.records == "disjoint":
            raise InvalidArgumentError(
                "num_validation_records must be given with records='disjoint'."
            )
        return self.num_records

    def _check_scores(self) -> None:
        """Raise if the scores alone exceed the guarantee of their records."""
        accountant = PrivacyAccountant()
        accountant.compose(self.charges()[-1][1])
        if not accountant.within(self.guarantee):
            raise InvalidArgumentError(
                f"score_noise is too small for {self.guarantee!r}, got "
                f"{self.score_plan.noise_std!r}: the scores of a selection by "
                f"{self.count!r} would cost more. Leave it out."
            )

    def _to_certify(self) -> dict[str, Any]:
        """Return the plan as parameters of the certificate."""
        return {
            "records": self.records,
            "count": repr(self.count),
            "steps_per_run": self.steps_per_run,
            "sample_rate": float(f"{self.sample_rate:.6g}"),
            "noise_multiplier": float(f"{self.noise_multiplier:.6g}"),
            "score_noise": float(f"{self.score_plan.noise_std:.6g}"),
            "score_range": list(self.score_plan.score_range),
            "budget": repr(self.guarantee),
        }
