"""A random number of runs, one by one or in parallel, and the best of them."""

from collections.abc import Iterator
from typing import Any

import torch

from botorch_dp._imports import import_extra
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.optimizers.selection.adaptive import (
    Proposals,
    draw_from,
    proposal_density,
)
from botorch_dp.optimizers.selection.candidates import Candidates, FiniteCandidates
from botorch_dp.optimizers.selection.randomness import fresh_globals, silence
from botorch_dp.optimizers.selection.runs import (
    BestRun,
    RunOutcome,
    RunTerms,
    make_run,
)
from botorch_dp.privacy.noise import NoiseSource
from botorch_dp.privacy.selection import SelectionEvent

_CPU = torch.device("cpu")
# The number of a run, the random number that decides between equal scores, the run.
_Numbered = tuple[int, float, RunOutcome]


class RandomRuns:
    """Draws the number of runs and their candidates, and returns the best run.

    It keeps nothing of a run.

    Args:
        candidates: What to draw from.
        event: What the selection costs, with the distribution of the number of runs.
        source: The source of all randomness.
        proposals: How candidates are drawn after the first runs; uniformly if None.
        pad_to: The number of runs to make; None makes those that count.
        n_jobs: How many runs are made at a time.
    """

    def __init__(
        self,
        candidates: Candidates,
        event: SelectionEvent,
        source: NoiseSource,
        *,
        proposals: Proposals | None = None,
        pad_to: int | None = None,
        n_jobs: int = 1,
    ) -> None:
        source.check_device(_CPU)
        self._candidates, self._event, self.source = candidates, event, source
        self._proposals, self._pad_to, self._n_jobs = proposals, pad_to, n_jobs

    def best(self, terms: RunTerms) -> RunOutcome | None:
        """Return the best run, or None if there is none.

        In here, everything is private: nothing may be kept elsewhere, neither the
        number of runs nor anything of a run that is not selected. Runs that do not
        count end like the others, and their errors are dropped.

        Args:
            terms: What all runs have in common.
        """
        num_counted = self._event.count.draw(self.source)
        num_made = num_counted if self._pad_to is None else self._pad_to
        best = BestRun()
        # The first error is selected, like a random one of several. Not so in parallel,
        # where the first to end need not be the first.
        may_stop = self._pad_to is None and self._n_jobs == 1
        with fresh_globals(self._seed()), silence():
            runs = self._one_by_one if self._n_jobs == 1 else self._in_parallel
            for index, tie, outcome in runs(terms, num_made):
                if index < num_counted:
                    best.offer(outcome, tie)
                    if outcome.error is not None and may_stop:
                        break
        return best.outcome

    def _one_by_one(self, terms: RunTerms, num_runs: int) -> Iterator[_Numbered]:
        """Yield runs one after the other."""
        history: list[tuple[int, float]] = []
        for index in range(num_runs):
            tie, seed = self._uniform(), self._seed()
            if self._proposals is None:
                outcome = make_run(terms, self._draw(), seed)
            else:
                assert isinstance(self._candidates, FiniteCandidates)
                density = proposal_density(
                    self._proposals,
                    history,
                    size=self._candidates.size,
                    ratios=self._event.proposal_ratios,
                )
                chosen = draw_from(density, self._uniform())
                outcome = make_run(terms, self._candidates.at(chosen), seed)
                history.append((chosen, outcome.score))
            yield index, tie, outcome

    def _in_parallel(self, terms: RunTerms, num_runs: int) -> Iterator[_Numbered]:
        """Yield runs as they finish."""
        joblib = _joblib()
        drawn = [
            (index, self._uniform(), self._seed(), self._draw())
            for index in range(num_runs)
        ]
        # Explicitly silent: joblib's own configuration could make it count aloud.
        parallel = joblib.Parallel(
            n_jobs=self._n_jobs, verbose=0, return_as="generator_unordered"
        )
        yield from parallel(
            joblib.delayed(_numbered_run)(index, tie, terms, x, seed)
            for index, tie, seed, x in drawn
        )

    def _draw(self) -> Any:
        return self._candidates.draw(self.source, _CPU)

    def _uniform(self) -> float:
        return float(self.source.uniform(torch.Size([]), _CPU))

    def _seed(self) -> int:
        return int(self._uniform() * 2**53)


def check_jobs(n_jobs: int) -> int:
    """Return a number of jobs, if it is one and joblib is there to make them."""
    if isinstance(n_jobs, bool) or not isinstance(n_jobs, int) or n_jobs == 0:
        raise InvalidArgumentError(
            "n_jobs must be a whole number other than 0 (-1 uses all processors), got "
            f"{n_jobs!r}."
        )
    if n_jobs != 1:
        _joblib()  # fail here, not after the charge
    return n_jobs


def _numbered_run(
    index: int, tie: float, terms: RunTerms, x: Any, seed: int
) -> _Numbered:
    # A thread or process that ends early would leave joblib waiting.
    return index, tie, make_run(terms, x, seed, catch=BaseException)


def _joblib() -> Any:
    return import_extra("joblib", extra="sklearn", purpose="n_jobs other than 1")
