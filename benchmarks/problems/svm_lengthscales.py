r"""Hyperparameters of a support vector machine: section 4.4 of [Sopa2025dpgibo]_.

References:
    .. [Sopa2025dpgibo] G. Sopa, J. Marusic, M. Avella-Medina and J. Cunningham.
        Scalable Differentially Private Bayesian Optimization. 2025. Bounds and sizes
        are in appendix C.4.
    .. [Friedman1991mars] J. H. Friedman. Multivariate Adaptive Regression Splines. The
        Annals of Statistics, 1991. The function behind the synthetic data.
"""

import math
from typing import Any, Unpack

import torch
from torch import Tensor

from benchmarks.problems._rbf import rbf_expansion
from botorch_dp._imports import import_extra
from botorch_dp._validation import check_count
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.problems.base import (
    PerRecordProblem,
    ProblemSettings,
    RowLosses,
    normal,
    seeded_generator,
    uniform,
)

_LOG_LENGTHSCALE_BOUNDS = (-2.0, 2.0)
_EPSILON_BOUNDS = (0.01, 1.0)
_C_BOUNDS = (0.1, 3.0)
_GAMMA_BOUNDS = (0.01, 5.0)
# The number of features on which the Friedman function depends.
_FRIEDMAN_FEATURES = 5


class SVMLengthscales(PerRecordProblem):
    r"""Tune the length scales and three parameters of a support vector regression.

    A candidate is a vector of d = p + 3 numbers for p features,

    * p natural logarithms of length scales :math:`l_j`, each in [-2, 2],
    * ``epsilon`` in [0.01, 1], ``C`` in [0.1, 3] and ``gamma`` in [0.01, 5],

    for the kernel :math:`\exp(-\gamma \sum_j (x_j - x_j')^2 / l_j^2)`. The machine is
    trained on the training set, and the loss of a record of the validation set is its
    squared error. Features and targets are standardized by the training set, so that
    losses are in units of the variance of its targets.

    The private records are those of the validation set. The training set counts as
    public: models trained on it are used without noise. The paper uses 5000 + 5000
    points and 30 of the features of the CT slices data, so that d = 33.

    Fitting needs scikit-learn (``pip install 'botorch-dp[sklearn]'``).

    Args:
        X_train: A ``num_train x p`` array or tensor of features.
        y_train: A ``num_train`` array or tensor of targets.
        X_val: An ``n x p`` array or tensor of features: private.
        y_val: An ``n`` array or tensor of targets: private.
        n_jobs: The number of threads that fit candidates, as in joblib: None is 1, and
            -1 is all processors. The solver does not hold Python's lock.
        **settings: ``negate``, ``dtype`` and ``device`` of
            :class:`~botorch_dp.problems.PerRecordProblem`.

    Example:
        >>> problem = SVMLengthscales.synthetic(num_features=6)
        >>> problem.dim, problem.transform[5:]
        (9, ('linear', 'log', 'log', 'log'))
        >>> problem.losses(problem.bounds.mean(dim=0, keepdim=True)).shape
        torch.Size([100, 1])
    """

    def __init__(
        self,
        X_train: Any,
        y_train: Any,
        X_val: Any,
        y_val: Any,
        *,
        n_jobs: int | None = None,
        **settings: Unpack[ProblemSettings],
    ) -> None:
        train_inputs, train_targets = _check_arrays("train", X_train, y_train)
        inputs, targets = _check_arrays("val", X_val, y_val)
        num_features = train_inputs.shape[-1]
        if inputs.shape[-1] != num_features:
            raise InvalidArgumentError(
                f"X_val must have the {num_features} features of X_train, got "
                f"{inputs.shape[-1]}."
            )
        if not (train_inputs.isfinite().all() and train_targets.isfinite().all()):
            raise InvalidArgumentError("X_train and y_train must be finite.")
        super().__init__(
            num_records=len(inputs),
            bounds=[_LOG_LENGTHSCALE_BOUNDS] * num_features
            + [_EPSILON_BOUNDS, _C_BOUNDS, _GAMMA_BOUNDS],
            transform=("linear",) * num_features + ("log",) * 3,
            **settings,
        )
        self.num_features = num_features
        self.n_jobs = n_jobs
        self._joblib = _import("joblib")
        self._svm = _import("sklearn.svm")
        # Always in double precision, as in scikit-learn.
        shift, scale = _location_and_scale(train_inputs)
        self._train_inputs = ((train_inputs - shift) / scale).to(self.device)
        self._inputs = ((inputs - shift) / scale).to(self.device)
        shift, scale = _location_and_scale(train_targets)
        self._train_targets = ((train_targets - shift) / scale).to(self.device)
        self._targets = ((targets - shift) / scale).to(self.device)

    @classmethod
    def from_arrays(
        cls,
        X: Any,
        y: Any,
        *,
        num_train: int = 5000,
        num_records: int = 5000,
        num_features: int = 30,
        seed: int = 0,
        **kwargs: Any,
    ) -> "SVMLengthscales":
        """Draw a training set, a validation set and features without replacement.

        Args:
            X: A ``rows x features`` array or tensor.
            y: A ``rows`` array or tensor.
            num_train: The number of rows for training.
            num_records: The number of other rows for validation.
            num_features: The number of features to use.
            seed: The seed of the draw.
            **kwargs: Passed on to the constructor.

        Example:
            >>> from sklearn.datasets import load_diabetes
            >>> X, y = load_diabetes(return_X_y=True)
            >>> problem = SVMLengthscales.from_arrays(
            ...     X, y, num_train=200, num_records=242, num_features=10
            ... )
            >>> problem.dim, problem.num_records
            (13, 242)
        """
        inputs, targets = _check_arrays(None, X, y)
        num_train = check_count("num_train", num_train, minimum=2)
        num_records = check_count("num_records", num_records)
        num_features = check_count("num_features", num_features)
        if num_train + num_records > len(inputs):
            raise InvalidArgumentError(
                f"num_train + num_records must be at most the {len(inputs)} rows of X, "
                f"got {num_train} + {num_records}."
            )
        if num_features > inputs.shape[-1]:
            raise InvalidArgumentError(
                f"num_features must be at most the {inputs.shape[-1]} features of X, "
                f"got {num_features}."
            )
        generator = seeded_generator(seed)
        rows = torch.randperm(len(inputs), generator=generator, device="cpu")
        features = torch.randperm(inputs.shape[-1], generator=generator, device="cpu")
        features = features[:num_features].sort().values
        train, rest = rows[:num_train], rows[num_train : num_train + num_records]
        return cls(
            inputs[train][:, features],
            targets[train],
            inputs[rest][:, features],
            targets[rest],
            **kwargs,
        )

    @classmethod
    def synthetic(
        cls,
        seed: int = 0,
        *,
        num_train: int = 100,
        num_records: int = 100,
        num_features: int = 30,
        **kwargs: Any,
    ) -> "SVMLengthscales":
        r"""Draw data from the function of [Friedman1991mars]_, for tests and tutorials.

        Features are uniform in the unit cube; the targets depend on five of them,
        :math:`10 \sin(\pi x_1 x_2) + 20 (x_3 - 1/2)^2 + 10 x_4 + 5 x_5 + e` with e
        standard normal.

        Args:
            seed: The seed of the data.
            num_train: The number of training points.
            num_records: The number of validation points.
            num_features: The number of features, at least five.
            **kwargs: Passed on to the constructor.
        """
        num_train = check_count("num_train", num_train, minimum=2)
        num_records = check_count("num_records", num_records)
        check_count("num_features", num_features, minimum=_FRIEDMAN_FEATURES)
        generator = seeded_generator(seed)
        X = uniform(num_train + num_records, num_features, generator=generator)
        y = (
            10 * torch.sin(math.pi * X[:, 0] * X[:, 1])
            + 20 * (X[:, 2] - 0.5).square()
            + 10 * X[:, 3]
            + 5 * X[:, 4]
            + normal(len(X), generator=generator)
        )
        return cls(X[:num_train], y[:num_train], X[num_train:], y[num_train:], **kwargs)

    def _loss_function(self, X: Tensor) -> RowLosses:
        X = X.detach().double()
        scales = X[:, : self.num_features].exp()  # b x p
        epsilon, penalty, gamma = X[:, self.num_features :].T.tolist()
        fit = self._joblib.delayed(self._fit)
        fits = self._joblib.Parallel(n_jobs=self.n_jobs, prefer="threads")(
            fit(*candidate)
            for candidate in zip(scales, epsilon, penalty, gamma, strict=True)
        )
        weights = torch.stack([weight for weight, _ in fits])  # b x num_train
        intercepts = torch.tensor(
            [intercept for _, intercept in fits],
            dtype=torch.float64,
            device=self.device,
        )
        # exp(-gamma |x|^2 / l^2) is an RBF kernel with length scale l / sqrt(2 gamma).
        scales = scales / (2 * X[:, -1:]).sqrt()

        predict = rbf_expansion(self._train_inputs, scales, weights)

        def losses(rows: slice) -> Tensor:
            predicted = intercepts + predict(self._inputs[rows])  # rows x b
            errors = self._targets[rows].unsqueeze(-1) - predicted
            return errors.square().to(self.dtype)

        return losses

    def _fit(
        self, scales: Tensor, epsilon: float, penalty: float, gamma: float
    ) -> tuple[Tensor, float]:
        """Return a weight per training point (0 outside the support) and the offset."""
        machine = self._svm.SVR(kernel="rbf", epsilon=epsilon, C=penalty, gamma=gamma)
        machine.fit(
            (self._train_inputs / scales).cpu().numpy(),
            self._train_targets.cpu().numpy(),
        )
        weights = torch.zeros_like(self._train_targets)
        support = torch.from_numpy(machine.support_).long().to(self.device)
        weights[support] = torch.from_numpy(machine.dual_coef_[0]).to(self.device)
        return weights, float(machine.intercept_[0])


def _import(module: str) -> Any:
    return import_extra(module, extra="sklearn", purpose="SVMLengthscales")


def _location_and_scale(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean and standard deviation of columns; 1 if a column is constant."""
    scale = values.std(dim=0, unbiased=False)
    return values.mean(dim=0), torch.where(scale > 0, scale, torch.ones_like(scale))


def _check_arrays(name: str | None, X: Any, y: Any) -> tuple[Tensor, Tensor]:
    suffix = "" if name is None else f"_{name}"
    inputs = torch.as_tensor(X, dtype=torch.float64, device="cpu")
    targets = torch.as_tensor(y, dtype=torch.float64, device="cpu")
    if inputs.dim() != 2 or 0 in inputs.shape or targets.shape != inputs.shape[:1]:
        raise InvalidArgumentError(
            f"X{suffix} must be rows x features and y{suffix} one number per row, "
            f"got shapes {tuple(inputs.shape)} and {tuple(targets.shape)}."
        )
    return inputs, targets
