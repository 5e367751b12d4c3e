"""The plan of a joint budget: the noise of training and the share of tuning."""

import math
from functools import lru_cache

from botorch_dp._validation import (
    check_choice,
    check_count,
    check_positive,
    check_probability,
)
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.privacy import (
    GDP,
    GaussianEvent,
    Guarantee,
    PoissonGaussianEvent,
    PrivacyAccountant,
    PrivacyEvent,
    noise_multiplier_for,
)
from botorch_dp.privacy.budget import check_gaussian

RECORDS = ("disjoint", "shared")
_DEFAULT_SHARE = 0.5
_NOISE_TOLERANCE = 1e-3  # of the noise multiplier
_SAME_NOISE = 1e-6  # the relative difference between machines for the same plan


class JointPlan:
    """The noise of training and the guarantee of tuning, for one guarantee together.

    :class:`JointBudget` documents the arguments and attributes.
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
    ) -> None:
        self.guarantee = check_gaussian(guarantee, secure=False)
        self.num_runs = check_count("num_runs", num_runs)
        self.sample_rate = check_sample_rate(sample_rate)
        if self.sample_rate < 1 and isinstance(guarantee, GDP):
            raise InvalidArgumentError(
                "guarantee must be an ApproxDP or an RDP with sample_rate below 1, got "
                f"{guarantee!r}: Gaussian noise on a sample of the records does not "
                "satisfy Gaussian differential privacy."
            )
        self.steps_per_run = check_count("steps_per_run", steps_per_run)
        self.records = check_choice("records", records, RECORDS)
        self.training_share = self._check_share(training_share)
        self.tuning = self._plan_tuning()
        self.noise_multiplier = self._plan_noise()

    def training_accountant(self, num_runs: int | None = None) -> PrivacyAccountant:
        """Return an accountant of planned runs.

        Args:
            num_runs: The number of runs; all planned runs if None.
        """
        runs = self.num_runs if num_runs is None else check_count("num_runs", num_runs)
        accountant = PrivacyAccountant()
        accountant.compose(self.step_event(), runs * self.steps_per_run)
        return accountant

    def step_event(self) -> PoissonGaussianEvent:
        """Return the privacy event of one training step."""
        return PoissonGaussianEvent(self.noise_multiplier, self.sample_rate)

    def tuning_event(self) -> GaussianEvent:
        """Return the privacy event of all of the tuning: one Gaussian release."""
        return GaussianEvent(1 / self.tuning.to_gdp().mu)

    def training_charges(self) -> list[tuple[PrivacyEvent, int]]:
        """Return the planned charges to the training ledger, with their counts."""
        charges: list[tuple[PrivacyEvent, int]] = [
            (self.step_event(), self.num_runs * self.steps_per_run)
        ]
        if self.records == "shared":
            charges.append((self.tuning_event(), 1))
        return charges

    def is_planned_run(self, event: PrivacyEvent, count: int) -> bool:
        """Return whether a charge is that of a training run of this plan."""
        planned = self.step_event()
        return (
            isinstance(event, PoissonGaussianEvent)
            and event.sampling_rate == planned.sampling_rate
            and math.isclose(
                event.noise_multiplier, planned.noise_multiplier, rel_tol=_SAME_NOISE
            )
            and count == self.steps_per_run
        )

    def _plan_tuning(self) -> Guarantee:
        if self.training_share is None:
            return self.guarantee
        mu = self.guarantee.to_gdp().mu
        return GDP(mu * math.sqrt(1 - self.training_share))

    def _plan_noise(self) -> float:
        num_releases = self.num_runs * self.steps_per_run
        if self.sample_rate == 1:  # exact, because the squares of mu add up
            share = 1.0 if self.training_share is None else self.training_share
            return math.sqrt(num_releases / share) / self.guarantee.to_gdp().mu
        beside = None if self.training_share is None else self.tuning_event()
        return _least_noise(self.guarantee, self.sample_rate, num_releases, beside)

    def _check_share(self, share: float | None) -> float | None:
        if self.records == "shared":
            share = _DEFAULT_SHARE if share is None else share
            return check_probability("training_share", share)
        if share is not None:
            raise InvalidArgumentError(
                "training_share must be None for disjoint records, because each set "
                f"may spend the whole guarantee, got {share!r}."
            )
        return None


def check_sample_rate(sample_rate: float) -> float:
    """Return the probability that a record is in a batch as a float, or raise."""
    rate = check_positive("sample_rate", sample_rate)
    if rate > 1:
        raise InvalidArgumentError(
            f"sample_rate must be at most 1, got {sample_rate!r}."
        )
    return rate


@lru_cache(maxsize=64)
def _least_noise(
    guarantee: Guarantee,
    sample_rate: float,
    num_releases: int,
    beside: GaussianEvent | None,
) -> float:
    """Return the smallest noise multiplier of sampled steps that meet a guarantee.

    The guarantee also covers the release ``beside``, if there is one.
    """
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
