"""Designs with history: how far from the least trace, and how long they take.

Writes ``benchmarks/results/design_history.json`` and the table made from it. Run it
with ``make benchmarks``.

* **traces**: the trace that d + 1 new points leave, after a design in closed form and
  after its refinement, over the least of 20 searches by L-BFGS-B (from the design in
  closed form, from its perturbations, from points around the centre at four radii, from
  uniform points). *Clustered* history is what DP-GIBO leaves behind: the
  designs around earlier iterates, with steps of 0.15 / sqrt(t) in the unit cube and
  length scale 0.5. *Spread* history is uniform, with length scale 0.5 sqrt(d). Radii
  and the number of evaluations were chosen on two other seeds. The times of both
  designs are CPU times, measured in turns.
* **descent**: the loss that DP-GIBO and GIBO reach with each, and the CPU time of a
  run.
* **algorithm_2**: the points that DP-GIBO evaluates with a tolerance.
"""

import math
import statistics
import time
import warnings
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from botorch.exceptions.warnings import BotorchWarning
from gpytorch.kernels import RBFKernel
from scipy.optimize import minimize
from threadpoolctl import threadpool_limits
from torch import Tensor

from benchmarks._common import Row, report, seeded
from botorch_dp import DPGIBO, GDP
from botorch_dp.acquisition import GradientInformation, optimal_design
from botorch_dp.models import GradientGP
from botorch_dp.optimizers.baselines.gibo import GIBO

SEED = 1
RESTARTS = 20
NUM_RECORDS = 1000
Case = tuple[str, int, int, float]
GRID: tuple[Case, ...] = tuple(
    (kind, d, n, noise)
    for d in (2, 5, 10, 33)
    for n in (0, 20, 100, 400)
    for kind in ("clustered", "spread")
    for noise in (1e-6, 1e-3)
    if n or kind == "clustered"
)


def cube(d: int) -> Tensor:
    return torch.stack([torch.zeros(d), torch.ones(d)]).double()


def make_model(X: Tensor, lengthscale: float, noise: float) -> GradientGP:
    if not len(X):  # a model needs a point: one that tells nothing
        X = X.new_full((1, X.shape[-1]), 1e3)
    kernel = RBFKernel().double()
    kernel.lengthscale = lengthscale
    return GradientGP(X, X[:, :1], kernel, noise_variance=noise)


def make_case(case: Case, seed: int) -> tuple[GradientGP, Tensor]:
    """The model of a history, and the point whose gradient is wanted."""
    kind, d, n, noise = case
    generator = seeded(seed)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    if kind == "spread":
        X = uniform(n, d)
        return make_model(X, 0.5 * math.sqrt(d), noise), 0.2 + 0.6 * uniform(d)
    theta, X, steps = 0.35 + 0.3 * uniform(d), uniform(0, d), 0
    while len(X) < n:
        order = (X - theta).square().sum(dim=-1).argsort()
        near = make_model(X[order[: 4 * (d + 1)]], 0.5, noise)
        design = optimal_design(near, theta, d + 1, cube(d), max_evaluations=0)
        X, steps = torch.cat([X, design.points]), steps + 1
        step = torch.randn(d, generator=generator, dtype=torch.float64)
        theta = theta + 0.15 / math.sqrt(steps) * step / step.norm()
        theta = theta.clamp(0, 1)
    return make_model(X[len(X) - n :], 0.5, noise), theta


def least_trace(model: GradientGP, theta: Tensor, design: Tensor) -> float:
    """The least trace of 20 searches by L-BFGS.

    The tolerances of L-BFGS-B are absolute: it sees the trace over that of the design,
    in units of its radius. It would stop early on the trace as it is.
    """
    b, d = design.shape
    acqf = GradientInformation(model, theta)
    unit = float((design - theta).norm(dim=-1).median()) / math.sqrt(d)
    trace = float(acqf.trace(design))

    def share(z: npt.NDArray[np.float64]) -> tuple[float, npt.NDArray[np.float64]]:
        X = torch.from_numpy(z * unit).view(b, d).requires_grad_()
        value = acqf.trace(X) / trace
        (gradient,) = torch.autograd.grad(value, X)
        return float(value.detach()), gradient.view(-1).numpy() * unit

    found = [
        minimize(
            share,
            start.clamp(0, 1).view(-1).numpy() / unit,
            jac=True,
            method="L-BFGS-B",
            bounds=[(0, 1 / unit)] * design.numel(),
            options={"maxiter": 400, "ftol": 1e-10, "gtol": 1e-8, "maxcor": 20},
        )
        for start in starting_points(theta, design, unit)
    ]
    return trace * min(float(result.fun) for result in found)


def starting_points(theta: Tensor, design: Tensor, unit: float) -> list[Tensor]:
    """The design, designs perturbed, points around the centre, uniform points."""
    generator = seeded(0)
    starts = [design]
    for i in range(RESTARTS - 1):
        noise = torch.randn(*design.shape, generator=generator, dtype=torch.float64)
        if i % 4 == 0:
            starts.append(design + 0.3 * unit * noise)
        elif i % 4 == 3:
            starts.append(
                torch.rand(*design.shape, generator=generator, dtype=torch.float64)
            )
        else:
            starts.append(theta + (0.5, 1, 2, 4)[i // 4 % 4] * unit * noise)
    return starts


def cpu_times(calls: list[Callable[[], object]], rounds: int = 9) -> list[float]:
    """The median CPU time of each call, measured in turns."""
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        for taken, call in zip(times, calls, strict=True):
            start = time.process_time()
            call()
            taken.append(time.process_time() - start)
    return [statistics.median(taken[1:]) for taken in times]


def traces() -> list[Row]:
    """The trace over the least of 20 searches, and CPU time over the closed form's.

    In 33 dimensions with 400 points of history the ratio of the times varies most: it
    was 2.4 to 3.4 in several runs, on a busy and on an idle machine.
    """
    return [trace_row(case) for case in GRID]


def trace_row(case: Case) -> Row:
    model, theta = make_case(case, SEED)
    kind, d, n, noise = case

    def design(max_evaluations: int | None = None) -> Callable[[], object]:
        return lambda: optimal_design(
            model, theta, d + 1, cube(d), max_evaluations=max_evaluations
        )

    plain = optimal_design(model, theta, d + 1, cube(d), max_evaluations=0)
    refined = optimal_design(model, theta, d + 1, cube(d))
    longer = optimal_design(model, theta, d + 1, cube(d), max_evaluations=20)
    least = least_trace(model, theta, plain.points)
    plain_time, refined_time = cpu_times([design(0), design()])
    return {
        "history, d, n, noise": f"{kind}, {d}, {n}, {noise:g}",
        "closed form": float(plain.trace) / least,
        "refined": float(refined.trace) / least,
        "refined, 20 evaluations": float(longer.trace) / least,
        "closed form, CPU ms": 1e3 * plain_time,
        "refined / closed form, time": refined_time / plain_time,
    }


def quadratics(records: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda X: torch.cdist(records, X).square() / records.shape[-1]


def sigmoids(records: Tensor) -> Callable[[Tensor], Tensor]:
    """A smooth 0-1 loss of a linear rule."""
    labels = (records.sum(dim=-1, keepdim=True) > records.shape[-1] / 2).double()
    return lambda X: torch.sigmoid(
        (1 - 2 * labels) * 4 * ((records - 0.5) @ (4 * X - 1).mT)
    )


def waves(records: Tensor) -> Callable[[Tensor], Tensor]:
    """Quadratics with ripples, of the width of the kernel."""

    def losses(X: Tensor) -> Tensor:
        apart = records.unsqueeze(1) * 0.5 + 0.1 - X
        return (apart.square() + 0.1 * (1 - torch.cos(8 * apart))).mean(dim=-1)

    return losses


TASKS = (
    ("quadratics", quadratics, 5),
    ("quadratics", quadratics, 20),
    ("sigmoids", sigmoids, 10),
    ("waves", waves, 5),
    ("waves", waves, 10),
)


def descent() -> list[Row]:
    """The mean of the last losses over 6 seeds, and its standard error (30 steps)."""
    rows = []
    for name, task, d in TASKS:
        for mu in (0.0, 1.0):
            rows.append(descent_row(name, task, d, mu))
    return rows


def descent_row(
    name: str, task: Callable[[Tensor], Callable[[Tensor], Tensor]], d: int, mu: float
) -> Row:
    searches = ("design", "refine")
    found: dict[str, list[float]] = {search: [] for search in searches}
    taken = dict.fromkeys(searches, 0.0)
    for seed in range(6):
        records = torch.rand(
            NUM_RECORDS, d, generator=seeded(seed), dtype=torch.float64
        )
        losses = task(records)
        initial = 0.1 + 0.8 * torch.rand(
            d, generator=seeded(100 + seed), dtype=torch.float64
        )
        for search in searches:
            start = time.process_time()
            optimizer: GIBO | DPGIBO
            if mu:
                optimizer = DPGIBO(
                    cube(d),
                    NUM_RECORDS,
                    GDP(mu),
                    30,
                    2.0,
                    initial_x=initial,
                    search=search,
                    generator=seeded(seed),
                )
            else:
                optimizer = GIBO(
                    cube(d), NUM_RECORDS, 30, 2.0, initial_x=initial, search=search
                )
            x = optimizer.run(losses, progress=False).x
            taken[search] += time.process_time() - start
            found[search].append(float(losses(x.unsqueeze(0)).mean()))
    gains = [a - b for a, b in zip(*found.values(), strict=True)]
    return {
        "task, d, mu": f"{name}, {d}, {mu or 'no privacy'}",
        **{search: statistics.mean(values) for search, values in found.items()},
        "design - refine": statistics.mean(gains),
        "its standard error": statistics.stdev(gains) / math.sqrt(len(gains)),
        "refine / design, time": taken["refine"] / taken["design"],
    }


def algorithm_2() -> list[Row]:
    """The points of 14 steps with a tolerance (quadratics, d = 10, steps of 0.02).

    Where the mean is zero, 20 searches with one point less try to reach the tolerance
    in each step. The first step has no history, and needs d + 1 points.
    """
    return [
        tolerance_row(tolerance, mean)
        for tolerance in (0.1, 1.0)
        for mean in ("zero", "constant")
    ]


def tolerance_row(tolerance: float, mean: str) -> Row:
    records = torch.rand(500, 10, generator=seeded(0), dtype=torch.float64)
    losses = quadratics(records)
    optimizer = DPGIBO(
        cube(10),
        500,
        GDP(1.0),
        14,
        1.0,
        tolerance=tolerance,
        step_size=0.02,
        mean=mean,
        generator=seeded(0),
    )
    sizes, fewer, points = [], 0, torch.empty(0, 10, dtype=torch.float64)
    while not optimizer.done:
        theta, X = optimizer.x, optimizer.ask()
        if mean == "zero" and len(X) > 1:
            start = X[1:]
            least = least_trace(make_model(points, 0.5, 1e-6), theta, start)
            fewer += least <= tolerance
        optimizer.tell(losses(X))
        sizes.append(len(X))
        points = torch.cat([points, X])
    return {
        "tolerance, mean": f"{tolerance:g}, {mean}",
        "points of each step": " ".join(map(str, sizes)),
        "in all": sum(sizes),
        "largest trace": max(step.trace or 0 for step in optimizer.history),
        "steps with a point too many": fewer if mean == "zero" else "not measured",
    }


SECTIONS = (traces, descent, algorithm_2)


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", BotorchWarning)
    with threadpool_limits(limits=1):
        report("design_history", "Designs with history, measured", SECTIONS)


if __name__ == "__main__":
    main()
