r"""One budget to train a model with Opacus and to tune its hyperparameters.

Tuning trains a model at every point that it evaluates, and each model is a release
about the training records: T steps of DP-GIBO with b points each, and a last run with
the result, are b T + 1 runs. A run is S steps of private gradient descent
[Abadi2016deep]_, which are Gaussian releases of Poisson samples of the records. All
runs together meet the guarantee: N runs on all records with :math:`\mu / \sqrt{N}`
each, and sampled runs by exact accounting. (The :math:`\mu / (b \sqrt{T})` for each of
b T runs in [Sopa2025dpgibo]_ needs more noise than composition requires.)

The losses for tuning depend on the models, and therefore on the training records, but
only through the releases of the training runs. Adaptive composition covers this, even
if training and tuning use the same records.

References:
    .. [Abadi2016deep] M. Abadi, A. Chu, I. Goodfellow, H. B. McMahan, I. Mironov,
        K. Talwar and L. Zhang. Deep Learning with Differential Privacy. CCS 2016.
    .. [Sopa2025dpgibo] G. Sopa, J. Marusic, M. Avella-Medina and J. Cunningham.
        Scalable Differentially Private Bayesian Optimization. 2025.
"""

from typing import TYPE_CHECKING

from botorch_dp._imports import lazy_imports

if TYPE_CHECKING:
    from botorch_dp.integrations.opacus.guesses import (
        TrainingGuess,
        adam_guess,
        linear_scaling_guess,
        settings_around,
    )
    from botorch_dp.integrations.opacus.joint_budget import JointBudget
    from botorch_dp.integrations.opacus.options import (
        TrainingOption,
        TrainingOptions,
        plan_training,
        recommended_count,
    )
    from botorch_dp.integrations.opacus.selection_run import SelectionRun

__all__ = [
    "JointBudget",
    "SelectionRun",
    "TrainingGuess",
    "TrainingOption",
    "TrainingOptions",
    "adam_guess",
    "linear_scaling_guess",
    "plan_training",
    "recommended_count",
    "settings_around",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_imports(__name__)
