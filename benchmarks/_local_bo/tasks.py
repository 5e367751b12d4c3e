"""Standards of local Bayesian optimization, as functions on the unit cube.

Every function takes a ``b x d`` tensor of points in the unit cube and returns ``b``
values to minimize. The optimum of a test function is moved to a random place in
``[0.1, 0.9]^d``, so that neither the centre nor a corner of the box is special.

References:
    .. [Mueller2021local] S. Mueller, A. von Rohr and S. Trimpe. Local Policy Search
        with Bayesian Optimization. NeurIPS 2021.
    .. [Eriksson2019turbo] D. Eriksson, M. Pearce, J. R. Gardner, R. Turner and
        M. Poloczek. Scalable Global Optimization via Local Bayesian Optimization.
        NeurIPS 2019.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.problems import GPLengthscales

DOUBLE = {"dtype": torch.float64}
Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Task:
    """A function of a seed, and how often it may be evaluated.

    Attributes:
        make: Makes the function from a seed.
        dim: The number d of parameters.
        budget: The number of evaluations.
        optimum: The least value, or None if it is unknown.
    """

    make: Callable[[int], Function]
    dim: int
    budget: int
    optimum: float | None = 0.0


def _seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def rosenbrock(Z: Tensor) -> Tensor:
    """Return Rosenbrock's function with its optimum moved to 0."""
    X = Z + 1.0
    steps = X[:, 1:] - X[:, :-1].square()
    return (100.0 * steps.square() + (1.0 - X[:, :-1]).square()).sum(dim=-1)


def ackley(Z: Tensor) -> Tensor:
    """Return Ackley's function."""
    root = Z.square().mean(dim=-1).sqrt()
    waves = (2 * math.pi * Z).cos().mean(dim=-1)
    return -20.0 * (-0.2 * root).exp() - waves.exp() + 20.0 + math.e


def levy(Z: Tensor) -> Tensor:
    """Return Levy's function with its optimum moved to 0."""
    W = 1.0 + Z / 4.0
    first = (math.pi * W[:, 0]).sin().square()
    sines = 1.0 + 10.0 * (math.pi * W[:, :-1] + 1.0).sin().square()
    middle = ((W[:, :-1] - 1.0).square() * sines).sum(dim=-1)
    last = 1.0 + (2 * math.pi * W[:, -1]).sin().square()
    return first + middle + (W[:, -1] - 1.0).square() * last


def _moved(base: Function, width: float, dim: int, seed: int) -> Function:
    optimum = 0.1 + 0.8 * torch.rand(dim, generator=_seeded(seed), **DOUBLE)
    return lambda X: base(width * (X - optimum))


def _quadratic(dim: int, seed: int) -> Function:
    """Return a quadratic with eigenvalues from 1 to 100 along random axes."""
    generator = _seeded(1000 + seed)
    axes = torch.linalg.qr(torch.randn(dim, dim, generator=generator, **DOUBLE)).Q
    scales = torch.logspace(0.0, 2.0, dim, **DOUBLE)
    return _moved(lambda Z: ((Z @ axes).square() * scales).sum(dim=-1), 1.0, dim, seed)


def _lqr(dim: int, seed: int) -> Function:
    """Return the log of the cost of a linear controller of a linear system.

    The system has sqrt(d) states and as many controls; the spectral radius without
    control is 1.1. The cost is that of 20 steps from 20 random states.
    """
    size, generator = math.isqrt(dim), _seeded(2000 + seed)
    A = torch.randn(size, size, generator=generator, **DOUBLE)
    A = 1.1 * A / torch.linalg.eigvals(A).abs().max()
    B = torch.randn(size, size, generator=generator, **DOUBLE) / math.sqrt(size)
    starts = torch.randn(20, size, generator=generator, **DOUBLE)

    def cost(X: Tensor) -> Tensor:
        gains = (2 * X - 1).reshape(-1, size, size)
        states, total = starts.expand(len(X), -1, -1), X.new_zeros(len(X))
        for _ in range(20):
            controls = states @ gains.mT
            stage = states.square().sum(-1) + 0.1 * controls.square().sum(-1)
            total = total + stage.mean(dim=-1)
            states = states @ A.T + controls @ B.T
        return total.log()

    return cost


def _cart_pole(dim: int, seed: int) -> Function:
    """Return the cost of balancing a pole with a linear policy of the last states.

    The policy is linear in the four states at each of the last d / 4 times. The cost
    is the mean over 100 steps of 0.05 s and 8 random starts.
    """
    memory = dim // 4
    starts = 0.4 * torch.rand(8, 4, generator=_seeded(3000 + seed), **DOUBLE) - 0.2
    scale = torch.tensor([1.0, 1.0, 10.0, 3.0], **DOUBLE)

    def cost(X: Tensor) -> Tensor:
        policy = (2 * X - 1).reshape(-1, 1, memory, 4) * scale
        state = starts.expand(len(X), -1, -1)
        past = torch.zeros(len(X), len(starts), memory, 4, **DOUBLE)
        total = X.new_zeros(len(X))
        for _ in range(100):
            past = torch.cat([state.unsqueeze(-2), past[..., :-1, :]], dim=-2)
            force = 5.0 * (past * policy).sum(dim=(-2, -1)).tanh()
            place, speed, angle, turn = state.unbind(dim=-1)
            sine, cosine = angle.sin(), angle.cos()
            push = (force + 0.05 * turn.square() * sine) / 1.1
            turning = (9.8 * sine - cosine * push) / (
                0.5 * (4 / 3 - 0.1 * cosine.square() / 1.1)
            )
            pushing = push - 0.05 * turning * cosine / 1.1
            rates = torch.stack([speed, pushing, turn, turning], dim=-1)
            state = (state + 0.05 * rates).clamp(-20.0, 20.0)
            stage = (1 - cosine) + 0.1 * place.square().clamp(max=10.0)
            total = total + stage.mean(dim=-1) / 100
        return total

    return cost


def _gp_lengthscales(dim: int, seed: int) -> Function:
    """Return the validation error of a Gaussian process at log length scales."""
    problem = GPLengthscales(300, dim, num_train=150, seed=seed)
    low, high = problem.bounds.log()
    return lambda X: problem.evaluate_true((low + (high - low) * X).exp())


_BASES: dict[str, tuple[Function, float]] = {
    "rosenbrock": (rosenbrock, 4.0),
    "ackley": (ackley, 15.0),
    "levy": (levy, 20.0),
}
# The evaluations that a task allows, by its number of dimensions.
BUDGETS = {20: 150, 100: 250, 300: 300}


def _tasks() -> dict[str, Task]:
    tasks = {}
    for dim, budget in BUDGETS.items():
        for name, (base, width) in _BASES.items():
            make = functools.partial(_moved, base, width, dim)
            tasks[f"{name}-{dim}"] = Task(make, dim, budget)
        make = functools.partial(_quadratic, dim)
        tasks[f"quadratic-{dim}"] = Task(make, dim, budget)
    for name, maker, dim in (
        ("lqr", _lqr, 100),
        ("cart-pole", _cart_pole, 20),
        ("gp-length-scales", _gp_lengthscales, 20),
    ):
        make = functools.partial(maker, dim)
        tasks[f"{name}-{dim}"] = Task(make, dim, BUDGETS[dim], None)
    return tasks


TASKS = _tasks()
