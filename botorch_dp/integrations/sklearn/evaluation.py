"""Fit candidates in parallel and compute the private losses of each."""

import contextlib
import sys
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import joblib
import numpy as np
import torch
from joblib import Parallel, delayed
from joblib.parallel import get_active_backend
from sklearn.base import clone
from torch import Tensor
from tqdm import tqdm

from botorch_dp.integrations.sklearn.candidate_scoring import CandidateScoring
from botorch_dp.integrations.sklearn.independence import check_independence
from botorch_dp.integrations.sklearn.quiet import Surroundings, quiet
from botorch_dp.integrations.sklearn.record_losses import Array, Scoring
from botorch_dp.integrations.sklearn.records import Records, copied
from botorch_dp.integrations.sklearn.space import Params
from botorch_dp.integrations.sklearn.stopping import Limits, now
from botorch_dp.integrations.sklearn.training_threads import (
    in_threads,
    is_serial,
    may_use_threads,
    trains_fast,
)


@dataclass
class Evaluation:
    """Fits candidates on training records and scores private records.

    Joblib evaluates every batch of candidates with the configured backend, so its
    workers see the private records. If none is configured, the time of the first fit
    decides between threads and processes.

    Attributes:
        estimator: The estimator to clone and fit.
        scoring: The loss of a record, or a score of all records together.
        training: The training inputs and targets, and further arguments of ``fit``.
        private: The private records.
        n_jobs: The number of joblib workers.
        bar: The progress bar, which counts fits.
        points_are_private: Whether the choice of candidates depends on exact private
            values. Then training is silent, and all records have the largest loss
            under a model whose training fails.
        limits: When to stop before the next model.
        num_fits: The number of models trained so far.
        kind_of: Returns the categories of a candidate. The first model of every kind
            is checked not to mix records, because another step may do what the first
            one does not.
        checked: The kinds that were checked.
        seconds_per_fit: How long the first model took to train, if that was measured.
    """

    estimator: Any
    scoring: Scoring | CandidateScoring
    training: tuple[Any, Any, dict[str, Any]] = field(repr=False)
    private: Records
    n_jobs: int | None
    bar: tqdm
    points_are_private: bool = False
    limits: Limits = field(default_factory=Limits)
    num_fits: int = 0
    kind_of: Callable[[Params], Any] = lambda params: None
    checked: list[Any] = field(default_factory=list)
    seconds_per_fit: float | None = None

    @property
    def num_records(self) -> int:
        """The number n of private records, or of the persons they belong to."""
        return self.private.num_persons

    @property
    def unit(self) -> str:
        """Who is protected, and has one row of losses."""
        return self.private.unit

    def expect(self, num_fits: int | None) -> None:
        """Tell the bar how many models will be trained."""
        self.bar.total = num_fits
        self.bar.n = self.bar.initial = self.num_fits  # trained before a restart
        self.bar.refresh()

    def losses(self, candidates: Sequence[Params]) -> Tensor:
        """Return the ``n x k`` private losses of k candidates, or ``2 x k`` tallies.

        Raises:
            SearchStopped: Before or between models, if a limit is reached. The losses
                so far are discarded.
        """
        self.limits.check(len(candidates))
        columns: list[Array] = []
        # Closing a generator ends the workers if it stops here.
        with contextlib.closing(self._columns(candidates)) as found:
            for column in found:
                columns.append(column)
                self.num_fits += 1
                self.limits.num_fits += 1
                self.bar.update()
                if len(columns) < len(candidates):
                    self.limits.check()
        return torch.from_numpy(np.stack(columns, axis=-1))

    def _columns(self, candidates: Sequence[Params]) -> Generator[Array, None, None]:
        """Yield the losses of candidates, by threads or processes if there are more.

        Threads only train. They never do so while private records are scored, because
        the streams and warnings of a process belong to all of its threads.
        """
        own = not self.points_are_private and may_use_threads(self.n_jobs)
        if own and self.seconds_per_fit is None:
            yield self._scored(self._timed_fit(candidates[0]), candidates[0])
            candidates = candidates[1:]
        if own and candidates and trains_fast(self.seconds_per_fit):
            size = joblib.effective_n_jobs(self.n_jobs)
            for start in range(0, len(candidates), size):
                together = candidates[start : start + size]
                models = in_threads(
                    partial(_fitted, self.estimator, training=self.training), together
                )
                for params in together:
                    yield self._scored(models.pop(0), params)
        elif candidates:
            yield from self._in_processes(candidates)

    def _timed_fit(self, params: Params) -> Any:
        """Train the first model, and keep how long it took: a public fact."""
        start = now()
        model = self.fitted(params)
        self.seconds_per_fit = now() - start
        return model

    def _scored(self, model: Any, params: Params) -> Array:
        is_new = self._is_new(params)
        with Surroundings().entered():
            return _scored(model, self.private, self.scoring, is_new)

    def _is_new(self, params: Params) -> bool:
        """Return whether a candidate is the first of its kind, from now on checked."""
        kind = self.kind_of(params)
        if kind in self.checked:
            return False
        self.checked.append(kind)
        return True

    def _in_processes(
        self, candidates: Sequence[Params]
    ) -> Generator[Array, None, None]:
        """Yield the losses of candidates, by joblib's configured backend."""
        tasks = (
            (
                Surroundings(),
                self.estimator,
                params,
                self.training,
                self.private,
                self.scoring,
                self.points_are_private,
                not self.points_are_private and self._is_new(params),
            )
            for params in candidates
        )
        if is_serial(self.n_jobs):
            yield from (_fit_and_score(*task) for task in tasks)
            return
        # Ray's backend returns all columns at once.
        one_by_one = get_active_backend()[0].supports_return_generator
        return_as = "generator" if one_by_one else "list"
        found = Parallel(n_jobs=self.n_jobs, return_as=return_as)(
            delayed(_fit_and_score)(*task) for task in tasks
        )
        with contextlib.closing(found) if one_by_one else contextlib.nullcontext():
            yield from found

    def interpolated(self, points: Sequence[list[tuple[float, Params]]]) -> Tensor:
        """Return the ``n x b`` losses of b points, each a weighted mean of candidates.

        Candidates that points share are fitted once.
        """
        different: list[Params] = []
        weights: list[list[tuple[float, int]]] = []
        for corners in points:
            weights.append([])
            for weight, params in corners:
                if params not in different:
                    different.append(params)
                weights[-1].append((weight, different.index(params)))
        columns = self.losses(different)
        mixture = columns.new_zeros(len(different), len(points))
        for point, row in enumerate(weights):
            for weight, index in row:
                mixture[index, point] += weight
        return columns @ mixture

    def fitted(self, params: Params) -> Any:
        """Return a model with these parameters, fitted on the training records."""
        return _fitted(self.estimator, params, self.training)

    def try_on(self, candidates: Sequence[Params]) -> None:
        """Raise any error of the loss, using training records only.

        One model of every kind is trained. The first one must not fail.
        """
        for params in filter(self._is_new, candidates):
            try:
                model = self.fitted(params)
            except Exception:
                if params is candidates[0]:
                    raise
                continue  # where training fails, all records have the largest loss
            self.scoring.try_on(model, self.private.of_training)
            check_independence(self.scoring, model, self.private.witnesses)


def progress_bar(name: str, verbose: int | None) -> tqdm:
    """Return a bar that counts models, and shows how long the rest will take.

    Args:
        name: What it says in front.
        verbose: Whether to show it; by default in a terminal or a notebook.
    """
    is_shown = _is_watched() if verbose is None else verbose > 0
    return tqdm(desc=name, unit="fit", disable=not is_shown)


def _is_watched() -> bool:
    """Return whether somebody sees a bar: in a terminal or a notebook."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if type(shell).__name__ == "ZMQInteractiveShell":
        return True
    return sys.stderr is not None and sys.stderr.isatty()


def _fitted(estimator: Any, params: Params, training: tuple[Any, Any, Any]) -> Any:
    X, y, fit_params = training
    model = clone(estimator).set_params(**clone(params, safe=False))
    # Copies, because a model may modify its training data in place.
    return model.fit(copied(X), copied(y), **fit_params)


def _fit_and_score(
    surroundings: Surroundings,
    estimator: Any,
    params: Params,
    training: tuple[Any, Any, Any],
    private: Records,
    scoring: Scoring | CandidateScoring,
    point_is_private: bool,
    is_new: bool,
) -> Array:
    with surroundings.entered():
        if point_is_private:
            try:
                with quiet():
                    model = _fitted(estimator, params, training)
            except KeyboardInterrupt:
                raise
            except BaseException:  # at which points training fails is private
                assert isinstance(scoring, Scoring)
                return scoring.worst_losses(private.num_persons)
        else:
            model = _fitted(estimator, params, training)
            return _scored(model, private, scoring, is_new)
        return scoring.private_losses(model, private)


def _scored(
    model: Any, private: Records, scoring: Scoring | CandidateScoring, is_new: bool
) -> Array:
    # Errors may show on training records, never on private ones.
    scoring.try_on(model, private.of_training)
    if is_new:
        check_independence(scoring, model, private.witnesses)
    return scoring.private_losses(model, private, is_tried=True)
