"""The best of a fixed number of private runs, each of which is paid for."""

import os
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from botorch.acquisition import LogExpectedImprovement
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.transforms import Standardize
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from botorch_dp._validation import check_callable, check_choice, check_count
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.optimizers.selection.candidates import (
    CandidateBox,
    FiniteCandidates,
    make_candidates,
)
from botorch_dp.optimizers.selection.runs import (
    CLAIMED,
    BestRun,
    RunTerms,
    check_base,
    make_run,
    takes_account,
)
from botorch_dp.privacy import Certificate, Guarantee, Ledger
from botorch_dp.privacy.account import RunAccount, check_ledger
from botorch_dp.privacy.certificate import PUBLIC_SETTINGS, WORST_CASE
from botorch_dp.privacy.entries import UNITS
from botorch_dp.privacy.events import PrivacyEvent
from botorch_dp.privacy.noise import SeededNoise, make_noise_source
from botorch_dp.privacy.report import result_card

_CPU = torch.device("cpu")


@dataclass(frozen=True)
class ComposedResult:
    """The best run, and the scores of all runs.

    Attributes:
        x: The candidate of the best run.
        model: What the best run returned beside its score; None if there is nothing.
        score: The score of the best run.
        history: The candidate and the score of every run. They were paid for.
        certificate: What is guaranteed, to whom, and under which assumptions.
    """

    x: Any
    model: Any = field(repr=False)
    score: float
    history: tuple[tuple[Any, float], ...] = field(repr=False)
    certificate: Certificate = field(repr=False)

    def _repr_html_(self) -> str:
        """Return all runs and the certificate, for notebooks."""
        rows = [("x", str(self.x)), ("score", f"{self.score:.6g}")]
        rows += [("runs", f"{score:.6g} at {x}") for x, score in self.history]
        return result_card("Selection", rows, self.certificate)


class ComposedSelection:
    """Pays for every run in full, and may show all of them.

    This is the simple alternative to :class:`PrivateSelection`, for a few runs or if
    every score is needed. The scores are released, so that BoTorch may follow them: it
    fits a Gaussian process to the scores so far and makes the next run at the candidate
    with the largest expected improvement. With m runs, each may cost about 1 / sqrt(m)
    of what one run could.

    Args:
        candidates: The values of x to choose from: a list of anything, or an ``m x d``
            tensor. In a list of anything all runs are random.
        bounds: A ``2 x d`` box instead.
        transform: The coordinates of the search in the box, see
            :class:`~botorch_dp.optimizers.core.search_box.SearchBox`.
        base: What one run costs: an event, or pairs of an event and how many releases
            have that cost.
        num_runs: The number of runs.
        num_random: The number of random runs at the beginning, by default a third.
        num_points: The number of Sobol points that stand for a box.
        guarantee: The guarantee that all runs together have to meet.
        ledger: The ledger to charge; by default a new one with the guarantee as its
            cap.
        adjacency: The neighbouring data sets for which the costs in ``base`` are
            stated.
        unit: Who is protected: ``"record"``, ``"person"``, ``"user"`` or ``"agent"``.
        generator: A seeded generator for experiments only. It decides the random
            candidates, and allows seeded noise in a run.

    Example:
        >>> from botorch_dp import GDP, GaussianMechanism
        >>> records = torch.rand(1_000, dtype=torch.float64)  # private
        >>> mechanism = GaussianMechanism(
        ...     GDP(mu=0.5), sensitivity=1 / 1_000, adjacency="zero_out"
        ... )
        >>> def train_and_score(x, account):
        ...     share = ((records - x).abs() < 0.1).double().mean()  # private
        ...     return mechanism.release(share, ledger=account)
        >>> selection = ComposedSelection(
        ...     [0.2, 0.8], base=mechanism.event(), num_runs=4, guarantee=GDP(mu=1.0)
        ... )
        >>> result = selection.run(train_and_score)
        >>> len(result.history), result.certificate.guarantee
        (4, GDP(mu=1))
    """

    name: ClassVar[str] = "ComposedSelection"

    def __init__(
        self,
        candidates: Sequence[Any] | Tensor | None = None,
        *,
        bounds: Tensor | None = None,
        transform: str | Sequence[str] = "linear",
        base: PrivacyEvent | Sequence[tuple[PrivacyEvent, int]],
        num_runs: int,
        num_random: int | None = None,
        num_points: int = 256,
        guarantee: Guarantee | None = None,
        ledger: Ledger | None = None,
        adjacency: str = "zero_out",
        unit: str = "record",
        generator: torch.Generator | None = None,
    ) -> None:
        found = make_candidates(candidates, bounds, transform)
        if isinstance(found, CandidateBox):
            found = found.grid(check_count("num_points", num_points, minimum=2))
        assert isinstance(found, FiniteCandidates)
        self._candidates, self._features = found, found.features()
        self.base = check_base(base, adjacency)
        self.num_runs = check_count("num_runs", num_runs)
        self.num_random = check_count(
            "num_random", -(-num_runs // 3) if num_random is None else num_random
        )
        self.adjacency = adjacency
        self.unit = check_choice("unit", unit, UNITS)
        check_ledger("ledger", ledger, optional=True)
        if guarantee is not None and ledger is not None:
            raise InvalidArgumentError(
                "guarantee and ledger exclude each other, because the ledger's cap is "
                f"the guarantee; got guarantee={guarantee!r}, ledger={ledger!r}."
            )
        self.ledger = Ledger(cap=guarantee) if ledger is None else ledger
        self._source = make_noise_source(generator, secure=False)
        self._source.check_device(_CPU)

    def planned_releases(self) -> list[tuple[PrivacyEvent, int]]:
        """Return every release of all runs: an event and how many there are."""
        return [(event, count * self.num_runs) for event, count in self.base]

    def run(self, train_and_score: Callable[..., Any]) -> ComposedResult:
        """Make the runs one after the other, each paid for before it begins.

        Args:
            train_and_score: A function of a candidate and the account of its run, or
                of a candidate alone, that returns a score, or a pair of a score and a
                model. The score must be one of the run's private releases.

        Raises:
            BudgetExceededError: If the ledger cannot pay for all runs. No run was made.
        """
        check_callable("train_and_score", train_and_score)
        terms = RunTerms(
            train_and_score=train_and_score,
            takes_account=takes_account(train_and_score),
            base=self.base,
            adjacency=self.adjacency,
            unit=self.unit,
            seeded=isinstance(self._source, SeededNoise),
            process=os.getpid(),
        )
        account = RunAccount(
            self.ledger,
            f"{self.name} {uuid.uuid4().hex}",
            adjacency=self.adjacency,
            unit=self.unit,
            condition=None if terms.takes_account else CLAIMED,
        )
        account.reserve(self.planned_releases())
        told: list[tuple[int, float]] = []
        best = BestRun()
        for _ in range(self.num_runs):
            index = self._next(told)
            for event, count in self.base:
                account.charge(
                    event,
                    count=count,
                    mechanism=self.name,
                    adjacency=self.adjacency,
                    noise=self._source.name,
                    unit=self.unit,
                )
            outcome = make_run(terms, self._candidates.at(index), seed=0)
            if outcome.error is not None:
                raise outcome.error
            told.append((index, outcome.score))
            best.offer(outcome, self._uniform())
        assert best.outcome is not None
        return ComposedResult(
            x=best.outcome.x,
            model=best.outcome.model,
            score=best.outcome.score,
            history=tuple((self._candidates.at(index), score) for index, score in told),
            certificate=Certificate.from_ledger(
                self.ledger,
                assumptions=(WORST_CASE, PUBLIC_SETTINGS),
                parameters=self._settings(),
                runs=account.runs,
            ),
        )

    def _settings(self) -> dict[str, Any]:
        return {
            "method": self.name,
            "candidates": self._candidates.describe(),
            "base": " + ".join(f"{count} x {event!r}" for event, count in self.base),
            "num_runs": self.num_runs,
        }

    def _next(self, told: list[tuple[int, float]]) -> int:
        """Return the index of the next candidate, from released scores alone."""
        usable = [(i, score) for i, score in told if abs(score) < float("inf")]
        few = len(told) < self.num_random or len(usable) < 2
        if few or self._features is None:
            return int(self._uniform() * self._candidates.size)
        return point_of_improvement(self._features, usable)

    def _uniform(self) -> float:
        return float(self._source.uniform(torch.Size([]), _CPU))


def point_of_improvement(features: Tensor, told: Sequence[tuple[int, float]]) -> int:
    """Return the candidate with the largest expected improvement, by BoTorch.

    Args:
        features: The ``m x d`` candidates in [0, 1].
        told: The index and the released score of some candidates, at least two.
    """
    X = features.double()
    train_X = X[[index for index, _ in told]]
    train_Y = torch.tensor([[score] for _, score in told]).to(X)
    model = SingleTaskGP(train_X, train_Y, outcome_transform=Standardize(m=1))
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    with torch.no_grad():
        # The scores are noisy, so the best of them is not the value to improve on.
        best = model.posterior(train_X).mean.max()
        acquisition = LogExpectedImprovement(model, best_f=best)
        return int(acquisition(X.unsqueeze(-2)).argmax())
