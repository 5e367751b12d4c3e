"""Searches on exact means: NOT private, to show what privacy costs."""

from typing import Any

import torch
from botorch.acquisition import LogExpectedImprovement
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.optim import optimize_acqf
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from benchmarks.contenders.base import design, sobol
from benchmarks.problems.arena_tasks import ArenaTask

NUM_RANDOM, NUM_TRIALS, NUM_EVALUATIONS, REFIT = 200, 100, 40, 5


def random_search(task: ArenaTask, epsilon: float, seed: int) -> Tensor:
    """Return the best of 200 Sobol points and the start."""
    points, means = design(task, seed, NUM_RANDOM)
    return points[int(means.argmin())]


def tpe(task: ArenaTask, epsilon: float, seed: int) -> Tensor:
    """Return the best of 100 trials of Optuna's TPE."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    names = [f"x{i}" for i in range(task.dim)]
    study.enqueue_trial(dict(zip(names, task.start.tolist(), strict=True)))

    def objective(trial: Any) -> float:
        x = [trial.suggest_float(name, 0.0, 1.0) for name in names]
        return float(task.mean(task.start.new_tensor([x])))

    study.optimize(objective, n_trials=NUM_TRIALS)
    return task.start.new_tensor([study.best_params[name] for name in names])


def log_ei(task: ArenaTask, epsilon: float, seed: int) -> Tensor:
    """Return the best of 40 points of LogEI, with a GP refitted every five points."""
    torch.manual_seed(seed)
    X = torch.cat([task.start[None], sobol(9, task.dim, seed)])
    y, state = -task.mean(X)[:, None], None
    while len(X) < NUM_EVALUATIONS:
        gp = SingleTaskGP(X, y)
        if state is None or len(X) % REFIT == 0:
            fit_gpytorch_mll(ExactMarginalLogLikelihood(gp.likelihood, gp))
            state = gp.covar_module.state_dict(), gp.likelihood.state_dict()
        gp.covar_module.load_state_dict(state[0])
        gp.likelihood.load_state_dict(state[1])
        acquisition = LogExpectedImprovement(gp, best_f=y.max())
        x, _ = optimize_acqf(
            acquisition,
            task.bounds,
            q=1,
            num_restarts=2,
            raw_samples=64,
            options={"maxiter": 30},
        )
        X, y = torch.cat([X, x]), torch.cat([y, -task.mean(x)[:, None]])
    return X[int(y.argmax())]
