r"""One budget to train a model with Opacus and to tune its hyperparameters.

Tuning trains a model at every point it asks for, and each of them is a release about
the training records: T steps of DP-GIBO with b points each, and a last run with what
was found, are b T + 1 runs. A run is S steps of private gradient descent
[Abadi2016deep]_, Gaussian releases of Poisson samples of the records. All of them
together meet the guarantee: N runs on all records at :math:`\mu / \sqrt{N}` each,
sampled ones by exact accounting. (That b T runs need :math:`\mu / (b \sqrt{T})` each,
as [Sopa2025dpgibo]_ has it, asks for more noise than composition does.)

The losses that tuning is told depend on the models, hence on the training records, but
only through what the training runs released: adaptive composition covers that, also if
the same records serve for both.

References:
    .. [Abadi2016deep] M. Abadi, A. Chu, I. Goodfellow, H. B. McMahan, I. Mironov,
        K. Talwar and L. Zhang. Deep Learning with Differential Privacy. CCS 2016.
    .. [Sopa2025dpgibo] G. Sopa, J. Marusic, M. Avella-Medina and J. Cunningham.
        Scalable Differentially Private Bayesian Optimization. 2025.
"""

from typing import TYPE_CHECKING

from botorch_dp._imports import lazy_imports

if TYPE_CHECKING:
    from botorch_dp.integrations.opacus.joint_budget import JointBudget

__all__ = ["JointBudget"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_imports(__name__)
