"""Many DP-SGD runs at once, for benchmarks of hyperparameter tuning.

A pool has one training run for each of its settings and for each of several noise
multipliers. The runs are those of a network with one hidden layer of tanh units (or of
a linear model), trained with Poisson batches, gradients clipped record by record, and
Gaussian noise on their sum, exactly as :class:`JointBudget` trains. Gradients of
records are never formed: those of a linear layer have norm ``|input| |error|``, so a
step is a few matrix products for all runs together, and a run takes about 0.1 seconds.

Within a pool, the runs share their batches, and the runs of one setting share their
initial weights and the standard normal numbers of their noise. Each run on its own has
the right distribution; the differences between noise multipliers have less variance.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

MOMENTUM = 0.9  # of SGD
BETAS, EPSILON = (0.9, 0.999), 1e-8  # of Adam, the defaults of torch
ADAM, SGD = "adam", "sgd"
_NUM_RUNS = 24  # trained at once, to fit into the cache
_NUM_ROWS = 4000  # scored at once


@dataclass(frozen=True)
class Setting:
    """The hyperparameters of a training run.

    Attributes:
        learning_rate: The learning rate.
        clip_norm: The norm to which a record's gradient is clipped.
        optimizer: ``"sgd"`` with momentum 0.9, or ``"adam"``.
        input_factor: The factor by which inputs are multiplied.
    """

    learning_rate: float
    clip_norm: float
    optimizer: str = SGD
    input_factor: float = 1.0


@dataclass(frozen=True)
class Task:
    """Records to train on, records to test on, and a model.

    Attributes:
        name: The name of the task.
        train_inputs: The ``n x d`` inputs of the training records, single precision.
        train_targets: The n classes (whole numbers), or the n numbers to predict.
        test_inputs: The inputs of the test records.
        test_targets: The targets of the test records.
        num_outputs: The number of classes; 1 for regression.
        num_hidden: The number of hidden units; 0 for a linear model.
        sampling_rate: The probability that a record is in a batch.
        num_steps: The number of steps of a run.
        tolerance: The error at which the score of a prediction is 0, for regression.
    """

    name: str
    train_inputs: Tensor
    train_targets: Tensor
    test_inputs: Tensor
    test_targets: Tensor
    num_outputs: int
    num_hidden: int
    sampling_rate: float
    num_steps: int
    tolerance: float = 1.0

    @property
    def num_records(self) -> int:
        """The number of training records."""
        return len(self.train_inputs)

    def scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the score of each record, from 0 to 1, larger is better.

        Args:
            outputs: The ``runs x num_outputs x rows`` outputs of models.
            targets: The targets of the rows.

        Returns:
            A ``runs x rows`` tensor: whether the class is right, or how near a number
            is to its target.
        """
        if self.num_outputs > 1:
            return (outputs.argmax(dim=1) == targets).to(outputs)
        errors = (outputs[:, 0] - targets).abs() / self.tolerance
        return (1.0 - errors).clamp(0.0, 1.0).nan_to_num(0.0)


def train(
    task: Task,
    settings: Sequence[Setting],
    noise_multipliers: Sequence[float],
    seed: int,
) -> tuple[Tensor, Tensor]:
    """Train every setting with every noise multiplier.

    Args:
        task: The task.
        settings: The P settings.
        noise_multipliers: The S noise multipliers.
        seed: The seed of batches, initial weights and noise.

    Returns:
        The mean scores on the training records and on the test records, ``P x S``.
    """
    levels = torch.as_tensor(noise_multipliers, dtype=torch.float32)
    per_chunk = max(1, _NUM_RUNS // len(levels))
    parts = [
        _train(task, settings[i : i + per_chunk], levels, seed=seed, first=i)
        for i in range(0, len(settings), per_chunk)
    ]
    train_scores, test_scores = zip(*parts, strict=True)
    return torch.cat(train_scores), torch.cat(test_scores)


def _train(
    task: Task, settings: Sequence[Setting], levels: Tensor, *, seed: int, first: int
) -> tuple[Tensor, Tensor]:
    runs = Runs(task, settings, levels, seed=seed, first=first)
    for rows in batches(task, seed):
        runs.step(task.train_inputs[rows], task.train_targets[rows])
    shape = (len(settings), len(levels))
    return (
        runs.mean_scores(task.train_inputs, task.train_targets).view(shape),
        runs.mean_scores(task.test_inputs, task.test_targets).view(shape),
    )


def batches(task: Task, seed: int) -> Iterator[Tensor]:
    """Yield the rows of each Poisson batch of a pool."""
    random = np.random.default_rng([seed, 0])
    for _ in range(task.num_steps):
        is_in = random.random(task.num_records) < task.sampling_rate
        yield torch.from_numpy(np.flatnonzero(is_in))


class Runs:
    """The weights and optimizers of runs that are trained together.

    Args:
        task: The task.
        settings: The P settings.
        levels: The S noise multipliers. Run ``p S + s`` has setting p and multiplier s.
        seed: The seed of initial weights and noise.
        first: The index of the first of these settings in its pool.
    """

    def __init__(
        self,
        task: Task,
        settings: Sequence[Setting],
        levels: Tensor,
        *,
        seed: int,
        first: int = 0,
    ) -> None:
        self._task = task
        self._num_levels = len(levels)
        self._randoms = [
            torch.Generator().manual_seed(1_000_003 * seed + first + i + 1)
            for i in range(len(settings))
        ]

        def each(values: list[float]) -> Tensor:
            return torch.tensor(values).repeat_interleave(len(levels))

        self.num_runs = len(settings) * len(levels)
        self._factor = each([s.input_factor for s in settings])
        self._clip = each([s.clip_norm for s in settings])
        self._rate = each([s.learning_rate for s in settings])
        self._is_adam = each([float(s.optimizer == ADAM) for s in settings]) > 0
        self._noise = levels.repeat(len(settings)) * self._clip
        self._expected = task.sampling_rate * task.num_records
        d = task.train_inputs.shape[1]
        sizes = [d, task.num_hidden, task.num_outputs]
        if not task.num_hidden:
            sizes = [d, task.num_outputs]
        # A layer's weights and biases, inputs last: runs x outputs x (inputs + 1).
        self._shapes = list(zip(sizes[1:], [s + 1 for s in sizes[:-1]], strict=True))
        # As torch does: uniform within one over the root of the number of inputs.
        self.weights = [
            (2.0 * uniform - 1.0) / math.sqrt(shape[1] - 1)
            for uniform, shape in zip(self._draw(torch.rand), self._shapes, strict=True)
        ]
        self._first = [torch.zeros_like(w) for w in self.weights]
        self._second = [torch.zeros_like(w) for w in self.weights]
        self._num_taken = 0

    def _draw(self, numbers: Callable[..., Tensor]) -> list[Tensor]:
        """Draw numbers for all weights, the same for all noise multipliers."""
        total = sum(a * b for a, b in self._shapes)
        flat = torch.stack([numbers(total, generator=g) for g in self._randoms])
        flat = flat.repeat_interleave(self._num_levels, dim=0)
        parts = flat.split([a * b for a, b in self._shapes], dim=1)
        return [
            p.reshape(self.num_runs, *s)
            for p, s in zip(parts, self._shapes, strict=True)
        ]

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the ``runs x outputs x rows`` outputs, and the hidden units."""
        first = self.weights[0]
        m, h = first.shape[:2]
        values = first[:, :, :-1].reshape(m * h, -1) @ inputs.T
        values = values.view(m, h, -1).mul_(self._factor.view(-1, 1, 1))
        values.add_(first[:, :, -1:])
        if len(self.weights) == 1:
            return values, None
        hidden = values.tanh_()
        last = self.weights[1]
        return torch.baddbmm(last[:, :, -1:], last[:, :, :-1], hidden), hidden

    def clipped_sums(self, inputs: Tensor, targets: Tensor) -> list[Tensor]:
        """Return the sums of the clipped gradients of a batch, for each layer."""
        outputs, hidden = self.forward(inputs)
        errors = _output_errors(outputs, targets)  # runs x outputs x rows
        input_norms = inputs.square().sum(dim=1)  # rows
        input_norms = self._factor.square()[:, None] * input_norms + 1.0
        if hidden is None:
            squares = input_norms * errors.square().sum(dim=1)
            scale = (self._clip[:, None] * squares.rsqrt()).clamp(max=1.0)
            return [self._first_sum(errors.mul_(scale[:, None]), inputs)]
        inner = torch.bmm(self.weights[1][:, :, :-1].transpose(1, 2), errors)
        inner.mul_(1.0 - hidden.square())
        squares = input_norms * inner.square().sum(dim=1)
        squares += (hidden.square().sum(dim=1) + 1.0) * errors.square().sum(dim=1)
        # A zero norm gives infinity, which is cut at 1.
        scale = (self._clip[:, None] * squares.rsqrt()).clamp(max=1.0)[:, None]
        errors.mul_(scale)
        inner.mul_(scale)
        last = torch.cat(
            [
                torch.bmm(errors, hidden.transpose(1, 2)),
                errors.sum(dim=2, keepdim=True),
            ],
            dim=2,
        )
        return [self._first_sum(inner, inputs), last]

    def _first_sum(self, errors: Tensor, inputs: Tensor) -> Tensor:
        m, h = errors.shape[:2]
        products = (errors.reshape(m * h, -1) @ inputs).view(m, h, -1)
        products.mul_(self._factor.view(-1, 1, 1))
        return torch.cat([products, errors.sum(dim=2, keepdim=True)], dim=2)

    def step(self, inputs: Tensor, targets: Tensor) -> None:
        """Take one step of every run on a batch."""
        sums = self.clipped_sums(inputs, targets)
        noise = self._draw(torch.randn)
        gradients = [
            (s + self._noise.view(-1, 1, 1) * z) / self._expected
            for s, z in zip(sums, noise, strict=True)
        ]
        self.move(gradients)

    def move(self, gradients: Sequence[Tensor]) -> None:
        """Move the weights along (noisy) gradients, as torch's optimizers do."""
        self._num_taken += 1
        t = self._num_taken
        adam = self._is_adam.view(-1, 1, 1)
        # Adam averages with weights 1 - beta, SGD adds up.
        keep = torch.where(adam, torch.tensor(BETAS[0]), torch.tensor(MOMENTUM))
        add = torch.where(adam, torch.tensor(1.0 - BETAS[0]), torch.tensor(1.0))
        rate = self._rate.view(-1, 1, 1)
        for weights, first, second, gradient in zip(
            self.weights, self._first, self._second, gradients, strict=True
        ):
            first.mul_(keep).add_(add * gradient)
            second.mul_(BETAS[1]).addcmul_(gradient, gradient, value=1.0 - BETAS[1])
            scaled = first / (1.0 - BETAS[0] ** t)
            scaled /= (second / (1.0 - BETAS[1] ** t)).sqrt() + EPSILON
            weights.sub_(rate * torch.where(adam, scaled, first))

    def mean_scores(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean score of each run over records."""
        total = torch.zeros(self.num_runs, dtype=torch.float64)
        for rows, values in zip(
            inputs.split(_NUM_ROWS), targets.split(_NUM_ROWS), strict=True
        ):
            scores = self._task.scores(self.forward(rows)[0], values)
            total += scores.sum(dim=1, dtype=torch.float64)
        return total / len(inputs)


def _output_errors(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the derivative of each record's loss with respect to the outputs.

    The loss is the cross entropy for classes, and torch's ``smooth_l1_loss`` for
    numbers.
    """
    if outputs.shape[1] == 1:
        return (outputs - targets).clamp_(-1.0, 1.0)
    classes = functional.one_hot(targets, outputs.shape[1]).T
    return outputs.softmax(dim=1).sub_(classes)
