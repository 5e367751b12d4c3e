"""Fit candidates in parallel and compute the private losses of each."""

import contextlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from joblib import Parallel, delayed
from sklearn.base import clone
from torch import Tensor
from tqdm import tqdm

from botorch_dp.integrations.sklearn.quiet import Surroundings, quiet
from botorch_dp.integrations.sklearn.record_losses import Array, Scoring
from botorch_dp.integrations.sklearn.records import Records, copied
from botorch_dp.integrations.sklearn.space import Params
from botorch_dp.integrations.sklearn.stopping import Limits


@dataclass
class Evaluation:
    """Fits candidates on training records and scores private records.

    Joblib evaluates every batch of candidates with the configured backend, so its
    workers see the private records.

    Attributes:
        estimator: The estimator to clone and fit.
        scoring: The loss of a record.
        training: The training inputs and targets, and further arguments of ``fit``.
        private: The private records.
        n_jobs: The number of joblib workers.
        bar: The progress bar, which counts fits.
        points_are_private: Whether the choice of candidates depends on exact private
            values. Then training is silent, and all records have the largest loss
            under a model whose training fails.
        limits: When to stop before the next model.
        num_fits: The number of models trained so far.
    """

    estimator: Any
    scoring: Scoring
    training: tuple[Any, Any, dict[str, Any]] = field(repr=False)
    private: Records
    n_jobs: int | None
    bar: tqdm
    points_are_private: bool = False
    limits: Limits = field(default_factory=Limits)
    num_fits: int = 0

    @property
    def num_records(self) -> int:
        """The number n of private records."""
        return len(self.private)

    def expect(self, num_fits: int | None) -> None:
        """Tell the bar how many models will be trained."""
        self.bar.total = num_fits
        self.bar.n = self.bar.initial = self.num_fits  # trained before a restart
        self.bar.refresh()

    def losses(self, candidates: Sequence[Params]) -> Tensor:
        """Return the ``n x k`` private losses of k candidates.

        Raises:
            SearchStopped: Before or between models, if a limit is reached. The losses
                so far are discarded.
        """
        self.limits.check(len(candidates))
        found = Parallel(n_jobs=self.n_jobs, return_as="generator")(
            delayed(_fit_and_score)(
                Surroundings(),
                self.estimator,
                params,
                self.training,
                self.private,
                self.scoring,
                self.points_are_private,
            )
            for params in candidates
        )
        columns = []
        with contextlib.closing(found):  # ends the workers if it stops here
            for column in found:
                columns.append(column)
                self.num_fits += 1
                self.limits.num_fits += 1
                self.bar.update()
                if len(columns) < len(candidates):
                    self.limits.check()
        return torch.from_numpy(np.stack(columns, axis=-1))

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

    def try_on(self, params: Params) -> None:
        """Raise any error of the model or the loss, using training records only."""
        self.scoring.try_on(self.fitted(params), self.private.of_training)


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
    scoring: Scoring,
    point_is_private: bool,
) -> Array:
    with surroundings.entered():
        if point_is_private:
            try:
                with quiet():
                    model = _fitted(estimator, params, training)
            except KeyboardInterrupt:
                raise
            except BaseException:  # at which points training fails is private
                return scoring.worst_losses(len(private))
        else:
            model = _fitted(estimator, params, training)
            # Errors may show on training records, never on private ones.
            scoring.try_on(model, private.of_training)
        return scoring.private_losses(model, private)
