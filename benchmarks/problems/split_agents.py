r"""Many agents with a small part of a data set each, who train and tune a classifier.

An agent has some records to train on, some to validate with, and the rest to test with.
All models of all agents are trained at once, and the accuracies are kept in tables, so
that methods of tuning can be compared cheaply. The tables are private to the agents, of
course: they are for measuring.

References:
    .. [Dai2021dpfts] Z. Dai, B. K. H. Low and P. Jaillet. Differentially Private
        Federated Bayesian Optimization with Distributed Exploration. NeurIPS 2021.
        Section 5.2 tunes support vector machines and logistic regression.
    .. [Hsu2019skew] T. H. Hsu, H. Qi and M. Brown. Measuring the Effects of
        Non-Identical Data Distribution for Federated Visual Classification. 2019.
        Labels of agents are drawn from a Dirichlet distribution.
"""

import functools
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from benchmarks.problems.data import load_dataset
from benchmarks.problems.svm_agents import Hyperparameter
from botorch_dp.problems.base import seeded_generator


@dataclass(frozen=True)
class Records:
    """A data set for classification.

    Attributes:
        X: An ``n x d`` tensor in single precision.
        y: Labels from 0, an ``n`` tensor.
    """

    X: Tensor
    y: Tensor

    @functools.cached_property
    def num_classes(self) -> int:
        """The number of classes."""
        return int(self.y.max()) + 1

    @functools.cached_property
    def variance(self) -> float:
        """The variance of all entries of X."""
        return float(self.X.var())


def adult() -> Records:
    """Return Adult: standardized numbers, and an indicator for each category."""
    arrays = load_dataset("adult")
    numbers = arrays["numeric"].astype(float)
    numbers[:, 3:5] = np.log1p(numbers[:, 3:5])  # gains and losses
    numbers = (numbers - numbers.mean(0)) / numbers.std(0)
    codes = [
        np.eye(len(arrays[f"levels_{name[4:]}"]))[arrays[name]]
        for name in arrays
        if name.startswith("cat_")
    ]
    X = np.concatenate([numbers, *codes], axis=1)
    return _records(X, arrays["y"])


def mnist() -> Records:
    """Return all 70,000 digits of MNIST as 14 x 14 pixels from 0 to 1."""
    arrays = load_dataset("mnist")
    images = np.concatenate([arrays["X_train"], arrays["X_test"]]) / np.float32(255)
    small = images.reshape(-1, 14, 2, 14, 2).mean((2, 4)).reshape(len(images), -1)
    return _records(small, np.concatenate([arrays["y_train"], arrays["y_test"]]))


def activities() -> Records:
    """Return the activities of 30 people, standardized: to choose options with."""
    arrays = load_dataset("har")
    X = (arrays["X"] - arrays["X"].mean(0)) / arrays["X"].std(0)
    return _records(X, arrays["y"] - arrays["y"].min())


def generated(seed: int, num_records: int = 30_000) -> Records:
    """Return four classes of three normal clouds each, in 20 dimensions."""
    generator = seeded_generator(seed)
    centers = torch.randn(4, 3, 20, generator=generator)
    y = torch.randint(4, (num_records,), generator=generator)
    cloud = torch.randint(3, (num_records,), generator=generator)
    noise = torch.randn(num_records, 20, generator=generator)
    return Records(centers[y, cloud] + noise, y)


def _records(X: np.ndarray, y: np.ndarray) -> Records:
    return Records(torch.from_numpy(X).float(), torch.from_numpy(y.astype(np.int64)))


def split(
    records: Records, num_agents: int, size: int, *, skew: float | None, seed: int
) -> Tensor:
    """Return which records each agent has, ``num_agents x size`` without repetition.

    Args:
        records: All records.
        num_agents: The number of agents.
        size: The number of records of each agent, in random order.
        skew: None for records at random. Otherwise the shares of the labels of an agent
            have a Dirichlet distribution around those of all records, with this
            parameter times the number of classes in all [Hsu2019skew]_: small values
            are agents with few labels.
        seed: The seed of the split.
    """
    rng = np.random.default_rng(seed)
    y = records.y.numpy()
    if skew is None:
        rows = rng.permutation(len(y))[: num_agents * size]
        return torch.from_numpy(rows.reshape(num_agents, size))
    pools = [list(rng.permutation(np.flatnonzero(y == k))) for k in np.unique(y)]
    prior = np.array([len(pool) for pool in pools]) / len(y)
    agents = []
    for _ in range(num_agents):
        shares = rng.dirichlet(skew * len(pools) * prior) + 1e-6
        rows = []
        for _ in range(size):
            left = shares * [len(pool) > 0 for pool in pools]
            rows.append(pools[rng.choice(len(pools), p=left / left.sum())].pop())
        agents.append(rng.permutation(rows))
    return torch.from_numpy(np.stack(agents))


@dataclass(frozen=True)
class Tables:
    """Accuracies of all agents with all candidates.

    Attributes:
        validation: ``N x m`` accuracies on the validation records.
        test: ``N x m`` accuracies on the test records.
    """

    validation: Tensor
    test: Tensor


class TunedModel(ABC):
    """A classifier with hyperparameters on a grid in the unit cube.

    Attributes:
        name: The name of the model.
        hyperparameters: The hyperparameter of each coordinate.
        grid: The number of values of each.
        guess: What one would choose without tuning, as values.
        other_guess: What somebody else might choose.
    """

    name: ClassVar[str]
    hyperparameters: ClassVar[tuple[Hyperparameter, ...]]
    grid: ClassVar[tuple[int, ...]]
    guess: ClassVar[tuple[float, ...]]
    other_guess: ClassVar[tuple[float, ...]]

    def candidates(self) -> Tensor:
        """Return all points of the grid, ``m x D`` in the unit cube."""
        axes = [torch.linspace(0, 1, size, dtype=torch.float64) for size in self.grid]
        return torch.cartesian_prod(*axes)

    def settings(self) -> Tensor:
        """Return the hyperparameters of all candidates, ``m x D``."""
        columns = zip(self.hyperparameters, self.candidates().unbind(-1), strict=True)
        return torch.stack([part.value(u) for part, u in columns], dim=-1)

    def guessed(self, guess: tuple[float, ...] | None = None) -> int:
        """Return the index of a guess, which is on the grid."""
        target = torch.tensor(guess or self.guess, dtype=torch.float64)
        close = torch.isclose(self.settings(), target, rtol=1e-6).all(dim=-1)
        (index,) = close.nonzero().squeeze(-1).tolist()
        return int(index)

    def tables(
        self, records: Records, rows: Tensor, num_train: int, num_validation: int
    ) -> Tables:
        """Train all models of all agents.

        Args:
            records: All records.
            rows: The records of each agent, ``N x size``.
            num_train: How many of them, from the first on, are for training.
            num_validation: How many of the next ones are for validation.
        """
        hits = torch.stack([self._hits(records, own, num_train) for own in rows])
        first, rest = hits[..., :num_validation], hits[..., num_validation:]
        return Tables(first.double().mean(dim=-1), rest.double().mean(dim=-1))

    @abstractmethod
    def _hits(self, records: Records, rows: Tensor, num_train: int) -> Tensor:
        """Return which of the other records are classified correctly, ``m x n``."""


class KernelClassifier(TunedModel):
    r"""Least squares on labels of -1 and 1 in the space of an RBF kernel.

    The kernel is :math:`\exp(-\gamma \|x - x'\|^2)`. The hyperparameters are
    :math:`\gamma` as a multiple of 1 / (d times the variance of the inputs), which is
    scikit-learn's default of a support vector machine, and the ridge, the inverse of
    C. The guess is its default, 1 for both. The variance is taken as public.
    """

    name = "kernel"
    hyperparameters = (
        Hyperparameter("gamma", 2.0**-6, 2.0**4, log=True),
        Hyperparameter("ridge", 1e-4, 1e2, log=True),
    )
    grid = (11, 7)
    guess = (1.0, 1.0)
    other_guess = (1.0, 0.1)

    def _hits(self, records: Records, rows: Tensor, num_train: int) -> Tensor:
        X, y = records.X[rows].double(), records.y[rows]
        unit = 1 / (X.shape[-1] * records.variance)
        distances = torch.cdist(X, X[:num_train]).square() * unit
        settings = self.settings().view(*self.grid, 2)
        ridges = settings[0, :, 1].view(-1, 1, 1)
        identity = torch.eye(num_train, dtype=torch.float64)
        targets = 2 * torch.eye(records.num_classes).double()[y[:num_train]] - 1
        found = []
        for gamma in settings[:, 0, 0]:
            kernel = (-gamma * distances).exp()
            factor = torch.linalg.cholesky(kernel[:num_train] + ridges * identity)
            weights = torch.cholesky_solve(targets.expand(len(ridges), -1, -1), factor)
            found.append((kernel[num_train:] @ weights).argmax(dim=-1))
        return torch.cat(found) == y[num_train:]


class SoftmaxRegression(TunedModel):
    """Softmax regression, trained by stochastic gradient descent from zero.

    30 epochs with batches of 20, the same ones for all candidates. The hyperparameters
    are the learning rate, the L2 penalty, and the probability with which an input is
    dropped in training. The guess is a usual one: 0.1, 1e-4, and no dropout.
    """

    name = "softmax"
    hyperparameters = (
        Hyperparameter("learning_rate", 1e-3, 1e1, log=True),
        Hyperparameter("penalty", 1e-4, 1.0, log=True),
        Hyperparameter("dropout", 0.0, 0.6),
    )
    grid = (9, 5, 3)
    guess = (0.1, 1e-4, 0.0)
    other_guess = (1.0, 1e-4, 0.0)
    num_epochs = 30
    batch_size = 20

    @torch.no_grad()
    def _hits(self, records: Records, rows: Tensor, num_train: int) -> Tensor:
        X, y = records.X[rows], records.y[rows]
        X = torch.cat([X, torch.ones(len(X), 1)], dim=-1)  # an offset
        targets = torch.eye(records.num_classes)[y[:num_train]]
        settings = self.settings().float()
        hits = torch.empty(len(settings), len(X) - num_train, dtype=torch.bool)
        for rate in settings[:, 2].unique():
            which = settings[:, 2] == rate
            weights = self._train(X[:num_train], targets, settings[which], float(rate))
            fitted = (X[num_train:] @ weights.flatten(1)).unflatten(
                -1, weights.shape[1:]
            )
            hits[which] = (fitted.argmax(dim=-1) == y[num_train:, None]).mT
        return hits

    def _train(self, X: Tensor, Y: Tensor, settings: Tensor, dropout: float) -> Tensor:
        """Return ``d x m x classes`` weights of m settings with one dropout."""
        generator = seeded_generator(0)
        steps, penalties = settings[:, :1], settings[:, 1:2]  # m x 1
        weights = X.new_zeros(X.shape[-1], len(settings), Y.shape[-1])
        # An implicit step of the penalty, so that a large one does not diverge.
        decay = 1 / (1 + steps * penalties)
        for _ in range(self.num_epochs):
            order = torch.randperm(len(X), generator=generator)
            for batch in order.split(self.batch_size):
                kept = torch.rand(X[batch].shape, generator=generator) >= dropout
                inputs = X[batch] * kept / (1 - dropout)
                fitted = (inputs @ weights.flatten(1)).unflatten(-1, weights.shape[1:])
                errors = fitted.softmax(dim=-1) - Y[batch].unsqueeze(1)
                errors = errors * (steps / len(batch))
                change = (inputs.mT @ errors.flatten(1)).view_as(weights)
                weights = decay * (weights - change)
        return weights
