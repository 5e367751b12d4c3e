r"""Agents that tune a classifier on data of their own: section 5.2 of [Dai2021dpfts]_.

An agent trains a classifier on half of its data and scores it on the other half. All
of it is private to the agent, so the unit of privacy is the agent, not a record.

Scores are deterministic, unlike those of the authors' scripts. There, an unseeded
``SVC(probability=True)`` gives areas under the curve with a standard deviation of 0.05
between calls, as much as between points.

References:
    .. [Dai2021dpfts] Z. Dai, B. K. H. Low and P. Jaillet. Differentially Private
        Federated Bayesian Optimization with Distributed Exploration. NeurIPS 2021.
    .. [Xue2007landmine] Y. Xue, X. Liao, L. Carin and B. Krishnapuram. Multi-Task
        Learning for Classification with Dirichlet Process Priors. JMLR, 2007.
    .. [Anguita2013har] D. Anguita, A. Ghio, L. Oneto, X. Parra and J. L. Reyes-Ortiz. A
        Public Domain Dataset for Human Activity Recognition Using Smartphones. ESANN,
        2013.
"""

import os
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.problems.data import load_dataset
from botorch_dp._imports import import_extra
from botorch_dp._validation import check_count
from botorch_dp.problems.agents import AgentProblem
from botorch_dp.problems.base import seeded_generator


@dataclass(frozen=True)
class Hyperparameter:
    """A hyperparameter as a coordinate of the unit cube.

    Attributes:
        name: The name of the hyperparameter.
        lower: The value at 0.
        upper: The value at 1.
        log: Whether the coordinate is on a log scale.
        whole: Whether the value is rounded to a whole number.
    """

    name: str
    lower: float
    upper: float
    log: bool = False
    whole: bool = False

    def value(self, u: Tensor) -> Tensor:
        """Return the values at coordinates in [0, 1]."""
        if self.log:
            values = self.lower * (self.upper / self.lower) ** u
        else:
            values = self.lower + (self.upper - self.lower) * u
        return values.round() if self.whole else values


@dataclass(frozen=True)
class _Halves:
    """The data of one agent on the CPU in double precision, with labels from 0."""

    X_train: Tensor
    y_train: Tensor
    X_val: Tensor
    y_val: Tensor


class ClassifierAgents(AgentProblem):
    """Agents that each train and score the same classifier on their own data.

    Points lie in the unit cube. The scores of earlier settings are cached.

    Attributes:
        hyperparameters: The hyperparameter of each coordinate.
    """

    hyperparameters: tuple[Hyperparameter, ...] = ()

    def __init__(
        self,
        agents: list[_Halves],
        *,
        n_jobs: int | None,
        dtype: torch.dtype,
        device: torch.device | str | None,
    ) -> None:
        super().__init__(
            num_agents=len(agents),
            bounds=[(0.0, 1.0)] * len(self.hyperparameters),
            dtype=dtype,
            device=device,
        )
        self.n_jobs = n_jobs
        self._agents = agents
        self._known: list[dict[tuple[float, ...], float]] = [{} for _ in agents]

    def settings(self, X: Tensor) -> Tensor:
        """Return the hyperparameters at points.

        Args:
            X: A ``batch_shape x D`` tensor of points in the unit cube.

        Returns:
            A ``batch_shape x D`` tensor in double precision.
        """
        columns = zip(self.hyperparameters, X.double().unbind(-1), strict=True)
        return torch.stack([part.value(u) for part, u in columns], dim=-1)

    def _scores(self, agents: Tensor, X: Tensor) -> Tensor:
        settings = [
            [tuple(setting) for setting in rows]
            for rows in self.settings(X.detach()).tolist()
        ]
        indices = agents.tolist()
        wanted: dict[int, dict[tuple[float, ...], None]] = {}
        for index, rows in zip(indices, settings, strict=True):
            new = [row for row in rows if row not in self._known[index]]
            wanted.setdefault(index, {}).update(dict.fromkeys(new))
        joblib = _import("joblib", type(self).__name__)
        found = joblib.Parallel(n_jobs=self.n_jobs, prefer="threads")(
            joblib.delayed(self._fit)(self._agents[index], list(new))
            for index, new in wanted.items()
            if new
        )
        busy = [index for index, new in wanted.items() if new]
        for index, values in zip(busy, found, strict=True):
            self._known[index].update(zip(wanted[index], values, strict=True))
        scores = [
            [self._known[index][row] for row in rows]
            for index, rows in zip(indices, settings, strict=True)
        ]
        return torch.tensor(scores, dtype=self.dtype, device=self.device)

    @abstractmethod
    def _fit(self, data: _Halves, settings: list[tuple[float, ...]]) -> list[float]:
        """Return the validation score of each setting."""


class LandmineAgents(ClassifierAgents):
    r"""29 fields with land mines to detect [Xue2007landmine]_.

    A field tunes a support vector machine with the kernel
    :math:`\exp(-\gamma \|x - x'\|^2)`: C in [1e-4, 10] and :math:`\gamma` in
    [0.01, 10], both linear in their coordinates as in the authors' scripts. The score
    is the area under the ROC curve of the decision function on the validation half. It
    is 1/2 if a half has only one class.

    Needs scikit-learn (``pip install 'botorch-dp[sklearn]'``) and the data
    (:func:`~benchmarks.problems.load_dataset`).

    Args:
        data_dir: The folder with the data; by default the value of the environment
            variable ``BOTORCH_DP_DATA``.
        n_jobs: The number of threads that train agents, as in joblib: None is 1, and
            -1 is all processors. The solver does not hold Python's lock.
        dtype: The dtype of points and scores.
        device: The device of points and scores; torch's default if None.
    """

    hyperparameters = (
        Hyperparameter("C", 1e-4, 10.0),
        Hyperparameter("gamma", 0.01, 10.0),
    )

    def __init__(
        self,
        data_dir: str | os.PathLike[str] | None = None,
        *,
        n_jobs: int | None = None,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str | None = None,
    ) -> None:
        self._svm = _import("sklearn.svm", "LandmineAgents")
        self._metrics = _import("sklearn.metrics", "LandmineAgents")
        arrays = load_dataset("landmine", data_dir)
        inputs = torch.from_numpy(arrays["X"]).double()
        labels = torch.from_numpy(arrays["y"]).long()
        tasks = torch.from_numpy(arrays["task"]).long()
        train = torch.from_numpy(arrays["is_train"])
        agents = []
        for task in tasks.unique().tolist():
            first, second = (tasks == task) & train, (tasks == task) & ~train
            agents.append(
                _Halves(inputs[first], labels[first], inputs[second], labels[second])
            )
        super().__init__(agents, n_jobs=n_jobs, dtype=dtype, device=device)

    def _fit(self, data: _Halves, settings: list[tuple[float, ...]]) -> list[float]:
        X_train, y_train = data.X_train.numpy(), data.y_train.numpy()
        X_val, y_val = data.X_val.numpy(), data.y_val.numpy()
        scores = []
        for penalty, gamma in settings:
            # Training or scoring would raise because of private values.
            if len(set(y_train)) < 2 or len(set(y_val)) < 2:
                scores.append(0.5)
                continue
            machine = self._svm.SVC(kernel="rbf", C=penalty, gamma=gamma)
            decisions = machine.fit(X_train, y_train).decision_function(X_val)
            scores.append(float(self._metrics.roc_auc_score(y_val, decisions)))
        return scores


class ActivityAgents(ClassifierAgents):
    r"""30 people whose phones classify six activities [Anguita2013har]_.

    A person tunes a logistic regression (softmax, with an offset) that is trained by
    stochastic gradient descent from zero. The hyperparameters are the learning rate in
    [0.01, 0.1], the L2 penalty :math:`\lambda` of :math:`\lambda \|W\|^2 / 2` in
    [1e-6, 10], both on a log scale, and the batch size from 20 to 60. The score is the
    accuracy on the validation half. The seed fixes the batches, so that the score is a
    function of the setting.

    The paper's main text only says "3 hyperparameters of logistic regression". The
    choice of hyperparameters, their ranges, the number of epochs and the split into
    halves (random within each activity) are ours. The data have 265 of the 561
    features, so scores differ from those of the paper.

    Needs the data (:func:`~benchmarks.problems.load_dataset`) and joblib
    (``pip install 'botorch-dp[sklearn]'``).

    Args:
        data_dir: The folder with the data; by default the value of the environment
            variable ``BOTORCH_DP_DATA``.
        num_epochs: The number of passes over each person's training half.
        seed: The seed of the split into halves and of the batches.
        n_jobs: The number of agents that train in parallel, as in joblib: None is 1,
            and -1 is all processors.
        dtype: The dtype of points and scores.
        device: The device of points and scores; torch's default if None.
    """

    hyperparameters = (
        Hyperparameter("learning_rate", 0.01, 0.1, log=True),
        Hyperparameter("penalty", 1e-6, 10.0, log=True),
        Hyperparameter("batch_size", 20, 60, whole=True),
    )

    def __init__(
        self,
        data_dir: str | os.PathLike[str] | None = None,
        *,
        num_epochs: int = 10,
        seed: int = 0,
        n_jobs: int | None = None,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str | None = None,
    ) -> None:
        self.num_epochs = check_count("num_epochs", num_epochs)
        self.seed = seed
        generator = seeded_generator(seed)
        arrays = load_dataset("har", data_dir)
        inputs = torch.from_numpy(arrays["X"]).double()
        labels = torch.from_numpy(arrays["y"]).long()
        subjects = torch.from_numpy(arrays["subject"]).long()
        labels = labels.unique(return_inverse=True)[1]
        self.num_classes = int(labels.max()) + 1
        ones = torch.ones_like(inputs[:, :1])
        inputs = torch.cat([inputs, ones], dim=-1)
        agents = []
        for subject in subjects.unique().tolist():
            train = torch.zeros_like(subjects, dtype=torch.bool)
            for label in range(self.num_classes):
                rows = ((subjects == subject) & (labels == label)).nonzero().squeeze(-1)
                order = torch.randperm(len(rows), generator=generator, device="cpu")
                train[rows[order[: (len(rows) + 1) // 2]]] = True
            rest = (subjects == subject) & ~train
            agents.append(
                _Halves(inputs[train], labels[train], inputs[rest], labels[rest])
            )
        super().__init__(agents, n_jobs=n_jobs, dtype=dtype, device=device)

    def _fit(self, data: _Halves, settings: list[tuple[float, ...]]) -> list[float]:
        scores: dict[tuple[float, ...], float] = {}
        for size in sorted({int(setting[2]) for setting in settings}):
            group = [setting for setting in settings if int(setting[2]) == size]
            rates, penalties, _ = torch.tensor(
                group, dtype=torch.float64, device="cpu"
            ).T
            weights = self._descend(data, rates, penalties, size)
            fitted = (data.X_val @ weights.flatten(1)).unflatten(-1, weights.shape[1:])
            hits = fitted.argmax(dim=-1) == data.y_val.unsqueeze(-1)
            accuracies = hits.double().mean(dim=0).tolist()
            scores.update(zip(group, accuracies, strict=True))
        return [scores[setting] for setting in settings]

    @torch.no_grad()
    def _descend(
        self, data: _Halves, rates: Tensor, penalties: Tensor, batch_size: int
    ) -> Tensor:
        """Return ``p x m x classes`` weights of m settings with one batch size.

        Settings share the batches, so that each step is two products of matrices.
        """
        X, num_classes = data.X_train, self.num_classes
        targets = torch.eye(num_classes, dtype=X.dtype, device="cpu")[data.y_train]
        weights = X.new_zeros(X.shape[-1], len(rates), num_classes)
        decay = (1 - rates * penalties).unsqueeze(-1)  # m x 1
        generator = seeded_generator(self.seed)
        for _ in range(self.num_epochs):
            order = torch.randperm(len(X), generator=generator, device="cpu")
            for rows in order.split(batch_size):
                fitted = X[rows] @ weights.flatten(1)
                fitted = fitted.unflatten(-1, weights.shape[1:])
                errors = fitted.softmax(dim=-1) - targets[rows].unsqueeze(1)
                errors = errors * (rates / len(rows)).unsqueeze(-1)
                steps = (X[rows].mT @ errors.flatten(1)).view_as(weights)
                weights = decay * weights - steps
        return weights


def _import(module: str, purpose: str) -> Any:
    return import_extra(module, extra="sklearn", purpose=purpose)
