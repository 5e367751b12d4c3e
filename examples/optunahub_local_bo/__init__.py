"""A sampler for Optuna that searches locally. Public tuning: it is not private.

References:
    .. [Fan2024minucb] Z. Fan, W. Wang, S. H. Ng and Q. Hu. Minimizing UCB: a Better
        Local Search Strategy in Local Bayesian Optimization. NeurIPS 2024.
    .. [Mueller2021local] S. Mueller, A. von Rohr and S. Trimpe. Local Policy Search
        with Bayesian Optimization. NeurIPS 2021.
    .. [Nguyen2022mpd] Q. Nguyen, K. Wu, J. R. Gardner and R. Garnett. Local Bayesian
        Optimization via Maximizing Descent Probability. NeurIPS 2022.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from optuna.distributions import BaseDistribution, FloatDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from botorch_dp import FittedGIBO, GradientTrustRegion, MinUCB, MostProbableDescent
from botorch_dp.optimizers.core.optimizer import Optimizer

__all__ = ["LocalBOSampler"]

_METHODS = {
    "min_ucb": MinUCB,
    "trust_region": GradientTrustRegion,
    "mpd": MostProbableDescent,
    "gibo": FittedGIBO,
}


class LocalBOSampler(BaseSampler):
    """Local Bayesian optimization with gradient information. It is not private.

    Each step evaluates a point and others that teach most about the gradient of a
    Gaussian process there, one a trial. Then the point moves.

    Args:
        search_space: The distributions of all parameters, floats only.
        method: How the point moves: ``"min_ucb"`` [Fan2024minucb]_, ``"trust_region"``,
            ``"mpd"`` [Nguyen2022mpd]_ or ``"gibo"`` [Mueller2021local]_.
        num_steps: How many steps there are. Then points are drawn at random.
        batch_size: How many trials a step has; d + 2 by default, at most 12.
        seed: The seed of the trials that are drawn at random.
        **options: Other arguments of the optimizer in ``botorch_dp``: ``MinUCB``,
            ``GradientTrustRegion``, ``MostProbableDescent`` or ``FittedGIBO``.
    """

    def __init__(
        self,
        search_space: Mapping[str, BaseDistribution],
        *,
        method: str = "min_ucb",
        num_steps: int = 100,
        batch_size: int | None = None,
        seed: int | None = None,
        **options: Any,
    ) -> None:
        _check(search_space, method)
        self._space = dict(search_space)
        self._method, self._options = method, {"num_steps": num_steps, **options}
        if batch_size is not None:
            self._options["batch_size"] = batch_size
        self._random = RandomSampler(seed=seed)
        self._optimizer = self._make_optimizer()
        self._points = self._optimizer.ask()
        self._trials: list[int | None] = [None] * len(self._points)
        self._values: list[float | None] = [None] * len(self._points)

    def __getstate__(self) -> dict[str, Any]:
        """Return what pickle keeps, for other processes and for resuming."""
        return {**vars(self), "_optimizer": self._optimizer.state_dict()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take over what pickle kept."""
        vars(self).update(state)
        self._optimizer = self._make_optimizer()
        self._optimizer.load_state_dict(state["_optimizer"])
        if not self._optimizer.done:
            self._optimizer.ask()  # the same points as before

    def reseed_rng(self) -> None:
        """Let processes draw different points where they draw at random."""
        self._random.reseed_rng()

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Return the search space that the sampler was given."""
        del trial
        if len(study.directions) != 1:
            raise ValueError("LocalBOSampler needs a study with one objective.")
        return self._space

    def sample_relative(
        self,
        study: Study,
        trial: FrozenTrial,
        search_space: dict[str, BaseDistribution],
    ) -> dict[str, Any]:
        """Return the next point of the step, or none if all are under evaluation."""
        del study
        if self._optimizer.done or None not in self._trials or not search_space:
            return {}  # sampled at random
        place = self._trials.index(None)
        self._trials[place] = trial.number
        values = zip(self._space.items(), self._points[place].tolist(), strict=True)
        return {name: min(max(x, d.low), d.high) for (name, d), x in values}

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Return a random value, for trials outside of a step."""
        return self._random.sample_independent(
            study, trial, param_name, param_distribution
        )

    def after_trial(
        self,
        study: Study,
        trial: FrozenTrial,
        state: TrialState,
        values: Sequence[float] | None,
    ) -> None:
        """Take a step once all its trials are finished."""
        if trial.number not in self._trials:
            return
        sign = -1.0 if study.direction == StudyDirection.MAXIMIZE else 1.0
        complete = state == TrialState.COMPLETE and values is not None
        value = sign * values[0] if complete and values else math.inf
        self._values[self._trials.index(trial.number)] = value
        losses = [value for value in self._values if value is not None]
        if len(losses) < len(self._points):
            return
        finite = [value for value in losses if math.isfinite(value)]
        if not finite:  # nothing was learned: evaluate the same points again
            self._forget()
            return
        told = [value if math.isfinite(value) else max(finite) for value in losses]
        self._optimizer.tell(torch.tensor([told], dtype=torch.float64, device="cpu"))
        if not self._optimizer.done:
            self._points = self._optimizer.ask()
        self._forget()

    def _forget(self) -> None:
        self._trials = [None] * len(self._points)
        self._values = [None] * len(self._points)

    def _make_optimizer(self) -> Optimizer:
        ranges = [(d.low, d.high) for d in self._space.values()]
        # On the CPU whatever the default device is: a trial's parameters are floats.
        return _METHODS[self._method](
            torch.tensor(ranges, dtype=torch.float64, device="cpu").mT.contiguous(),
            num_records=1,
            transform=["log" if d.log else "linear" for d in self._space.values()],
            **self._options,
        )


def _check(search_space: Mapping[str, BaseDistribution], method: str) -> None:
    if not search_space:
        raise ValueError("search_space must have at least one parameter, got none.")
    for name, distribution in search_space.items():
        floats = isinstance(distribution, FloatDistribution)
        if not floats or distribution.step is not None or distribution.single():
            raise ValueError(
                f"search_space[{name!r}] must be a FloatDistribution without step "
                f"and with low < high, got {distribution}."
            )
    if method not in _METHODS:
        raise ValueError(
            f"method must be one of {', '.join(_METHODS)}, got {method!r}."
        )
