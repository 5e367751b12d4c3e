"""LocalBOSampler on a quadratic in ten dimensions.

Run ``python -m examples.optunahub_local_bo.example``.
"""

import optuna
from optuna.distributions import FloatDistribution

from examples.optunahub_local_bo import LocalBOSampler

SPACE = {f"x{i}": FloatDistribution(-2.0, 2.0) for i in range(10)}


def objective(trial: optuna.Trial) -> float:
    """Return the squared distance from (0.3, ..., 0.3)."""
    values = [trial.suggest_float(name, -2.0, 2.0) for name in SPACE]
    return sum((value - 0.3) ** 2 for value in values)


def run(num_trials: int = 110) -> optuna.Study:
    """Run the study and return it."""
    study = optuna.create_study(sampler=LocalBOSampler(SPACE))
    study.optimize(objective, n_trials=num_trials)
    return study


if __name__ == "__main__":
    print(f"best value: {run().best_value:.3g}")
