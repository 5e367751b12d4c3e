"""The base class of federated problems: many agents with a function each.

An agent evaluates its own function, a score to maximize, at points of a domain that all
agents share. A problem plays all agents at once. Scores are private to their agent. The
best and true scores are also private; they measure how good an optimizer is.

References:
    .. [Dai2021dpfts] Z. Dai, B. K. H. Low and P. Jaillet. Differentially Private
        Federated Bayesian Optimization with Distributed Exploration. NeurIPS 2021.
        Section 5.1.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from botorch_dp._validation import (
    check_choice,
    check_count,
    check_nonnegative,
    check_positive,
    describe,
)
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.problems.base import (
    bounds_tensor,
    inside_box,
    normal,
    seeded_generator,
    uniform,
)

# Far below the variance of a draw, 1, and far above rounding errors.
_JITTER = 1e-8


class AgentProblem(ABC):
    """Functions to maximize, one for each agent, on one domain.

    A subclass implements :meth:`_scores`.

    Args:
        num_agents: The number of agents N.
        bounds: A (lower, upper) pair for each dimension.
        noise_std: The standard deviation of normal noise on the observations.
        seed: The seed of that noise, which is drawn call by call.
        dtype: The dtype of points and scores, ``torch.float32`` or ``torch.float64``.
        device: The device of points and scores; torch's default if None.

    Attributes:
        dim: The number of dimensions D.
        bounds: A ``2 x D`` tensor.
        candidates: A ``C x D`` tensor of all points of a finite domain, or None.
        optimal_values: An ``N`` tensor of the largest true score of each agent, or None
            if unknown: private, for measuring only.
    """

    def __init__(
        self,
        *,
        num_agents: int,
        bounds: Sequence[tuple[float, float]],
        noise_std: float = 0.0,
        seed: int = 0,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str | None = None,
    ) -> None:
        self.num_agents = check_count("num_agents", num_agents)
        self.noise_std = check_nonnegative("noise_std", noise_std)
        self.bounds = bounds_tensor(bounds, dtype, device)
        self.dim = self.bounds.shape[-1]
        self.candidates: Tensor | None = None
        self.optimal_values: Tensor | None = None
        self._noise_generator = seeded_generator(seed)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of points and scores."""
        return self.bounds.dtype

    @property
    def device(self) -> torch.device:
        """The device of points and scores."""
        return self.bounds.device

    def evaluate(self, agents: Tensor | None, X: Tensor) -> Tensor:
        """Return the noisy observations of agents at their points.

        Args:
            agents: An ``n`` tensor of indices of agents; None for all N.
            X: An ``n x k x D`` tensor of k points within the bounds for each agent.

        Returns:
            An ``n x k`` tensor of scores: private.
        """
        scores = self.evaluate_true(agents, X)
        if self.noise_std == 0:
            return scores
        noise = normal(*scores.shape, generator=self._noise_generator)
        return scores + (self.noise_std * noise).to(scores)

    def evaluate_true(self, agents: Tensor | None, X: Tensor) -> Tensor:
        """Return scores without noise: private, for measuring only.

        Args:
            agents: An ``n`` tensor of indices of agents; None for all N.
            X: An ``n x k x D`` tensor of points within the bounds.
        """
        if agents is None:
            agents = torch.arange(self.num_agents, device=self.device)
        self._check_agents(agents)
        return self._scores(agents, self._check_points(X, len(agents)))

    def tabulate(
        self, grid_size: int, *, noise_std: float = 0.0, seed: int = 0
    ) -> "TabulatedAgents":
        """Evaluate every agent once on a grid, for experiments with many seeds.

        Args:
            grid_size: The number of points in each dimension, including the bounds.
            noise_std: The standard deviation of the noise of the new problem.
            seed: The seed of that noise.

        Returns:
            A problem on the points of the grid, with the true scores.

        Example:
            >>> problem = PerturbedGPDraws(4, grid_size=100)
            >>> problem.tabulate(12).candidates.shape
            torch.Size([12, 1])
        """
        grid_size = check_count("grid_size", grid_size, minimum=2)
        points = _grid(self.bounds, *[grid_size] * self.dim)
        scores = self.evaluate_true(None, points.expand(self.num_agents, -1, -1))
        return TabulatedAgents(
            scores.reshape(self.num_agents, *[grid_size] * self.dim),
            [(float(low), float(high)) for low, high in self.bounds.mT],
            noise_std=noise_std,
            seed=seed,
        )

    @abstractmethod
    def _scores(self, agents: Tensor, X: Tensor) -> Tensor:
        """Return the ``n x k`` true scores of agents at ``n x k x D`` points."""

    def _check_agents(self, agents: Tensor) -> None:
        if (
            not isinstance(agents, Tensor)
            or agents.dim() != 1
            or agents.dtype != torch.int64
            or agents.device != self.device
        ):
            raise InvalidArgumentError(
                f"agents must be a vector of torch.int64 on {self.device}, or None for "
                f"all agents, got {describe(agents)}."
            )
        if ((agents < 0) | (agents >= self.num_agents)).any():
            raise InvalidArgumentError(
                f"agents must be at least 0 and below {self.num_agents}, got "
                f"{agents.tolist()}."
            )

    def _check_points(self, X: Tensor, size: int) -> Tensor:
        if (
            not isinstance(X, Tensor)
            or X.dim() != 3
            or X.shape[0] != size
            or X.shape[2] != self.dim
            or X.dtype != self.dtype
        ):
            raise InvalidArgumentError(
                f"X must be a {self.dtype} tensor of shape {size} x k x {self.dim}, "
                f"got {describe(X)}."
            )
        return inside_box(X, self.bounds)


class TabulatedAgents(AgentProblem):
    """Functions with known values on a grid, constant around its points.

    Args:
        values: An ``N x g_1 x ... x g_D`` tensor of the score of each agent at each
            point of an even grid that includes the bounds.
        bounds: A (lower, upper) pair for each dimension.
        noise_std: The standard deviation of normal noise on the observations.
        seed: The seed of that noise.

    Example:
        >>> values = torch.tensor([[0.0, 1.0, 0.5], [2.0, 0.0, 1.0]])
        >>> problem = TabulatedAgents(values, [(0.0, 1.0)])
        >>> problem.candidates.T
        tensor([[0.0000, 0.5000, 1.0000]])
        >>> problem.evaluate(None, torch.tensor([[[0.4]], [[0.9]]]))
        tensor([[1.],
                [1.]])
        >>> problem.optimal_values
        tensor([1., 2.])
    """

    def __init__(
        self,
        values: Tensor,
        bounds: Sequence[tuple[float, float]],
        *,
        noise_std: float = 0.0,
        seed: int = 0,
    ) -> None:
        if (
            not isinstance(values, Tensor)
            or values.dim() < 2
            or values.dim() != len(bounds) + 1
            or min(values.shape[1:]) < 2
        ):
            raise InvalidArgumentError(
                "values must be a tensor of agents x a grid with "
                f"{len(bounds)} dimension(s) of at least 2 points, got "
                f"{describe(values)}."
            )
        super().__init__(
            num_agents=len(values),
            bounds=bounds,
            noise_std=noise_std,
            seed=seed,
            dtype=values.dtype,
            device=values.device,
        )
        self.grid_shape = tuple(values.shape[1:])
        self.candidates = _grid(self.bounds, *self.grid_shape)
        self._values = values.detach().reshape(self.num_agents, -1).contiguous()
        self.optimal_values = self._values.max(dim=-1).values

    @property
    def values(self) -> Tensor:
        """The ``N x C`` true scores at the candidates: private, for measuring only."""
        return self._values

    def nearest(self, X: Tensor) -> Tensor:
        """Return the ``batch_shape`` indices of the candidates nearest to points.

        Args:
            X: A ``batch_shape x D`` tensor of points within the bounds.
        """
        lower, upper = self.bounds
        last = torch.tensor(self.grid_shape, device=X.device) - 1
        # These are whole numbers at the points of the grid, up to rounding errors.
        steps = ((X - lower) / (upper - lower) * last).round().long()
        steps = steps.clamp(min=torch.zeros_like(last), max=last)
        index = torch.zeros(X.shape[:-1], dtype=torch.int64, device=X.device)
        for j, size in enumerate(self.grid_shape):
            index = index * size + steps[..., j]
        return index

    def _scores(self, agents: Tensor, X: Tensor) -> Tensor:
        return self._values[agents.unsqueeze(-1), self.nearest(X)]


class PerturbedGPDraws(TabulatedAgents):
    """One function with a small perturbation for each agent [Dai2021dpfts]_.

    The function is one draw of a Gaussian process with a squared exponential kernel of
    variance 1, on an even grid of [0, 1].

    The paper sets N = 200. Its main text does not state the grid, the length scale or
    the size of the perturbations, so these defaults are ours.

    Args:
        num_agents: The number of agents N.
        grid_size: The number of points of the grid.
        lengthscale: The length scale of the kernel.
        perturbation: The standard deviation of the perturbations.
        perturb: ``"values"`` perturbs every value independently by a uniform number;
            ``"function"`` adds a draw of the same process, which is smooth and may move
            an agent's optimum.
        noise_std: The standard deviation of normal noise on the observations.
        seed: The seed of the functions and of that noise.
        dtype: The dtype of points and scores.
        device: The device of points and scores; torch's default if None.

    Example:
        >>> problem = PerturbedGPDraws(noise_std=0.01)
        >>> problem.candidates.shape, problem.optimal_values.shape
        (torch.Size([1000, 1]), torch.Size([200]))
        >>> agents = torch.tensor([3, 5])
        >>> problem.evaluate(agents, torch.zeros(2, 4, 1, dtype=torch.float64)).shape
        torch.Size([2, 4])
    """

    def __init__(
        self,
        num_agents: int = 200,
        *,
        grid_size: int = 1000,
        lengthscale: float = 0.03,
        perturbation: float = 0.05,
        perturb: str = "values",
        noise_std: float = 0.0,
        seed: int = 0,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str | None = None,
    ) -> None:
        num_agents = check_count("num_agents", num_agents)
        grid_size = check_count("grid_size", grid_size, minimum=2)
        self.lengthscale = check_positive("lengthscale", lengthscale)
        self.perturbation = check_nonnegative("perturbation", perturbation)
        self.perturb = check_choice("perturb", perturb, ("values", "function"))
        if device is None:
            device = torch.get_default_device()
        generator = seeded_generator(seed)
        factor = _squared_exponential_factor(grid_size, self.lengthscale)
        common = normal(grid_size, generator=generator) @ factor.mT
        if perturb == "function":
            own = normal(num_agents, grid_size, generator=generator) @ factor.mT
        else:
            # Uniform with unit variance.
            own = uniform(num_agents, grid_size, generator=generator)
            own = 12**0.5 * (own - 0.5)
        values = common + self.perturbation * own
        super().__init__(
            values.to(dtype=dtype, device=device), [(0.0, 1.0)], noise_std=noise_std
        )
        # A new generator with this seed would repeat the draws of the functions.
        self._noise_generator = generator


def _squared_exponential_factor(size: int, lengthscale: float) -> Tensor:
    """Return a Cholesky factor of the kernel matrix on a grid of [0, 1]."""
    grid = torch.linspace(0.0, 1.0, size, dtype=torch.float64, device="cpu")
    distances = (grid.unsqueeze(-1) - grid) / lengthscale
    gram = (-0.5 * distances.square()).exp()
    gram.diagonal().add_(_JITTER)
    return torch.linalg.cholesky(gram)


def _grid(bounds: Tensor, *sizes: int) -> Tensor:
    """Return the ``C x D`` points of an even grid, last dimension fastest."""
    lower, upper = bounds.double().cpu()
    axes = [
        torch.linspace(0.0, 1.0, size, dtype=torch.float64, device="cpu")
        for size in sizes
    ]
    points = torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1)
    return (lower + (upper - lower) * points.flatten(0, -2)).to(bounds)
